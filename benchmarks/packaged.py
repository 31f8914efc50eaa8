"""Runs a packaged job with several seeds, one after the other; one raw result each. What was interrupted goes on.

    python benchmarks/packaged.py --seeds 0-9 --folder runs
    python benchmarks/packaged.py --report      # of the raw results: how many seeds end above --above
    python benchmarks/packaged.py --pairs --seeds 12-35     # rapo_math and grpo_math side by side: equal_traces_plan.md

The runs share ``--folder``: the first one builds the Step-Trace Buffer there. A seed that has its raw result is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
FIGURES = (
    *("accuracy", "groups_without_signal", "members_without_signal", "retrieval_prob", "num_episodes"),
    *("retrieval/count", "retrieval/shows_answer", "retrieval/retrieved_count", "retrieval/accuracy_retrieved"),
    *("retrieval/others_count", "retrieval/accuracy_others", "ends/tool_limit", "ends/length"),
)  # of the sampled trajectories of an iteration
PAIR = ("rapo_math", "grpo_math")
OF_PAIRS = ("env_config.num_test=256", "evaluation_duration=256", "evaluation_interval=20")


def main() -> None:
    """Run the seeds that are missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=REPOSITORY / "tuned_examples" / "rapo_math.yaml")
    parser.add_argument("--seeds", default="0-9", help="first-last, or a list with commas")
    parser.add_argument("--set", action="append", default=[], help="key=value over the job's own; part of the settings")
    parser.add_argument("--folder", type=Path, default=Path("packaged_runs"), help="where the runs happen")
    parser.add_argument("--json-dir", type=Path, default=RESULTS)
    parser.add_argument("--above", type=float, default=0.35, help="the accuracy that a seed is to end above")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--pairs", action="store_true", help="both jobs, a core each; into the folder `pairs` of --json-dir")
    arguments = parser.parse_args()
    job, settings = arguments.job.resolve(), ["time_budget_s=null", *arguments.set]
    if arguments.pairs:
        run_pairs(seeds_of(arguments.seeds), settings, arguments.folder.resolve(), arguments.json_dir / "pairs")
        return
    if not arguments.report:
        for seed in seeds_of(arguments.seeds):
            run_missing(job, seed, settings, arguments.folder.resolve(), arguments.json_dir)
    files = sorted(arguments.json_dir.glob(f"packaged-{job.stem}-seed-*.json"))
    print(report([json.loads(file.read_text(encoding="utf-8")) for file in files], arguments.above))


def seeds_of(text: str) -> list[int]:
    """Read ``0-3`` or ``0,2``."""
    if "-" in text:
        first, last = map(int, text.split("-"))
        return list(range(first, last + 1))
    return [int(seed) for seed in text.split(",")]


def settings_hash(job: Path, settings: Sequence[str]) -> str:
    """Stand for what decides a job's course: comments, the seed and how many transcripts are kept are left out."""
    import yaml

    chosen = yaml.safe_load(job.read_text(encoding="utf-8"))
    for experiment in chosen.values():
        for key in ("seed", "transcripts", "transcripts_to_keep"):  # the last: of the file at 748a3cd
            experiment["config"].pop(key, None)
    return hashlib.sha256(json.dumps([chosen, list(settings)], sort_keys=True).encode()).hexdigest()[:16]


def is_done(file: Path, settings: str) -> bool:
    """Whether a seed has its raw result, with these very settings.

    Raises:
        ValueError: the raw result is of other settings.
    """
    if not file.exists():
        return False
    of = json.loads(file.read_text(encoding="utf-8"))["settings"]
    if of != settings:
        raise ValueError(f"{file} is of the settings {of}, not {settings}: give another --json-dir, or delete it")
    return True


def run_pairs(seeds: Sequence[int], settings: Sequence[str], folder: Path, json_dir: Path) -> None:
    """Run both jobs of each seed, pair by pair; two runs at a time, each on a core of its own. One that fails ends it."""
    json_dir.mkdir(exist_ok=True)
    waiting = iter([(seed, name) for seed in seeds for name in (PAIR if seed % 2 else PAIR[::-1])])
    taking, alone = Lock(), {name: Lock() for name in PAIR}

    def work(core: int) -> None:
        while True:
            with taking:
                seed, name = next(waiting, (None, ""))
            if seed is None:
                return
            try:
                with alone[name]:  # runs of one job share a folder, and in it a Step-Trace Buffer that one Ray may open
                    run_missing(_job(name), seed, [*settings, *OF_PAIRS], folder / name, json_dir, core)
            except BaseException:
                with taking:
                    list(waiting)  # the other core takes no more
                raise

    with ThreadPoolExecutor(len(PAIR)) as pool:
        for worker in [pool.submit(work, core) for core in range(len(PAIR))]:
            worker.result()


def _job(name: str) -> Path:
    return REPOSITORY / "tuned_examples" / f"{name}.yaml"


def run_missing(job: Path, seed: int, settings: Sequence[str], folder: Path, json_dir: Path, core: int | None = None) -> None:
    """Run a seed that has no raw result yet, on one core if it is named."""
    file = json_dir / f"packaged-{job.stem}-seed-{seed}.json"
    if not is_done(file, settings_hash(job, settings)):
        result = run(job, seed, settings, folder, core)
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def run(job: Path, seed: int, settings: Sequence[str], folder: Path, core: int | None = None) -> dict[str, Any]:
    """Train with one seed, to the end."""
    folder.mkdir(parents=True, exist_ok=True)
    storage = folder / f"{job.stem}-seed-{seed}"
    command = [
        *([] if core is None else ["taskset", "--cpu-list", str(core)]),
        sys.executable,
        "-m",
        "rapo_rllib.cli.main",
        "train",
        "file",
        str(job),
        "--resume",
        "--storage-path",
        str(storage),
    ]
    for change in (*settings, f"seed={seed}"):
        command += ["--set", change]
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(command, cwd=folder, check=True, env={"RAY_worker_niceness": "0", **os.environ})
    (trial,) = (file.parent for file in storage.glob("*/*/summary.json"))
    lines = (trial / "result.json").read_text(encoding="utf-8").splitlines()
    about = {"job": job.name, "seed": seed, "set": list(settings), "settings": settings_hash(job, settings)}
    about["commit"] = commit
    about["machine"] = (
        f"{len(os.sched_getaffinity(0)) if core is None else 1} of {os.cpu_count()} cores, {platform.machine()}, in shared use"
    )
    summary = json.loads((trial / "summary.json").read_text(encoding="utf-8"))
    for checkpoint in trial.glob("checkpoint_*"):  # gigabytes that nobody needs any more
        shutil.rmtree(checkpoint)
    return {**about, **figures([json.loads(line) for line in lines]), "warnings": summary["warnings"]}


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curve of held-out accuracy, and numbers of every iteration."""
    totals = results[-1]["rapo"]
    curve = [[0, totals["accuracy_before"]]]
    iterations = []
    for result in results:
        number, evaluated = result["training_iteration"], result.get("evaluation", {}).get("env_runners", {})
        if "accuracy" in evaluated:
            curve.append([number, evaluated["accuracy"]])
        sampled = {name: round(value, 6) for name in FIGURES if (value := _at(result["env_runners"], name)) is not None}
        iterations.append({"iteration": number, "seconds": round(result["time_this_iter_s"], 1), **sampled})
    return {
        "held_out": curve,
        "evaluated_questions": totals["evaluated_questions"],
        "seconds": round(sum(row["seconds"] for row in iterations), 1),
        "iterations": iterations,
    }


def _at(values: Mapping[str, Any], name: str) -> float | None:
    """A number under a flat name; RLlib has NaN for what an iteration did not report."""
    number = float(flattened(values).get(name, math.nan))
    return number if math.isfinite(number) else None


def report(results: Sequence[Mapping[str, Any]], above: float) -> str:
    """One line a seed, and how many end above the bar."""
    ends = [result["held_out"][-1][1] for result in results]
    lines = [
        f"seed {result['seed']}: {', '.join(f'{100 * accuracy:.1f}' for _, accuracy in result['held_out'])} % "
        f"in {result['seconds']:.0f} s"
        for result in results
    ]
    return "\n".join([*lines, f"{sum(end > above for end in ends)} of {len(ends)} seeds end above {above:.0%}"])


if __name__ == "__main__":
    main()

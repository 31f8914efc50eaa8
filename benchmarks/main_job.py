"""Runs a job as a user does and measures it from outside: time to the first iteration, peak memory, accuracy, tokens/s.

    python benchmarks/main_job.py --json main_job.json --plot docs/rapo_math.png
    python benchmarks/main_job.py --trial rapo_results/rapo-math/RAPO_... --plot docs/rapo_math.png   # plot an earlier run

Memory is the proportional set size of every process that the command started, summed, sampled once a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
MARK = "RAPO_BENCHMARK_RUN"  # environment variable that all processes of a run inherit


def run(job: Path, folder: Path) -> dict[str, Any]:
    """Run the job in ``folder`` and watch it until it ends."""
    mark = uuid.uuid4().hex
    command = [
        sys.executable,
        "-m",
        "rapo_rllib.cli.main",
        "train",
        "file",
        str(job),
        "--storage-path",
        str(folder / "results"),
    ]
    started = time.monotonic()
    peak, first_iteration_s = 0, None
    with subprocess.Popen(command, cwd=folder, env={**os.environ, MARK: mark}) as process:
        while process.poll() is None:
            peak = max(peak, memory_of(mark))
            if first_iteration_s is None and any(file.stat().st_size for file in folder.glob("results/*/*/result.json")):
                first_iteration_s = time.monotonic() - started
            time.sleep(1.0)
    if process.returncode:
        sys.exit(f"the job ended with exit status {process.returncode}")
    return {
        "seconds_from_command_to_end": time.monotonic() - started,
        "seconds_to_first_iteration_end": first_iteration_s,
        "peak_memory_gb": peak / 1e9,
    }


def memory_of(mark: str) -> int:
    """Bytes that all processes with this mark hold."""
    total = 0
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it ended meanwhile, or is another user's
    return total


def results_of(trial: Path) -> list[dict[str, Any]]:
    """One result per iteration."""
    return [json.loads(line) for line in (trial / "result.json").read_text(encoding="utf-8").splitlines()]


def plot(trial: Path, file: Path) -> None:
    """Held-out accuracy, and accuracy of what is sampled in training (single steps, too), over minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = results_of(trial)
    minutes = [result["time_total_s"] / 60 for result in results]
    evaluated = [(0.0, results[-1]["rapo"]["accuracy_before"])]
    evaluated += [
        (minute, result["evaluation"]["env_runners"]["accuracy"])
        for minute, result in zip(minutes, results, strict=True)
        if "evaluation" in result
    ]
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    sampled = [100 * result["env_runners"]["accuracy"] for result in results]
    axes.plot(minutes, sampled, color="#9db7d5", label="sampled in training, help included")
    label = f"{results[-1]['rapo']['evaluated_questions']} held-out questions, greedy, no retrieval"
    axes.plot([m for m, _ in evaluated], [100 * a for _, a in evaluated], "o-", color="#b5432a", label=label)
    axes.set(xlabel="minutes of training", ylabel="solved, %", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=REPOSITORY / "tuned_examples" / "rapo_math.yaml")
    parser.add_argument("--folder", type=Path, default=Path("main_job"), help="where the run happens; must not exist yet")
    parser.add_argument("--trial", type=Path, help="folder of an earlier trial; nothing is run")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="write the curve here (.png)")
    arguments = parser.parse_args()
    measured: dict[str, Any] = {}
    trial = arguments.trial
    if trial is None:
        arguments.folder.mkdir(parents=True)
        measured = run(arguments.job.absolute(), arguments.folder.absolute())
        (trial,) = (file.parent for file in arguments.folder.glob("results/*/*/result.json"))
    measured |= json.loads((trial / "summary.json").read_text(encoding="utf-8"))
    measured["iterations"] = len(results_of(trial))
    print(json.dumps(measured, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    if arguments.plot:
        plot(trial, arguments.plot)


if __name__ == "__main__":
    main()

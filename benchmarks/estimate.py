"""Is `rllib train file JOB --estimate` right? Short jobs run as a user's, and their peaks are compared with the estimate.

    python benchmarks/estimate.py --json estimate.json               # all of them: an hour of two cores
    python benchmarks/estimate.py --only LoRA float32
    python benchmarks/estimate.py --counted --json benchmarks/results/recipes.json --page docs/resources.md    # a minute

Measured is the proportional set size of the largest process of a role, and of all processes together. With `--counted` nothing
runs: three jobs for machines with GPUs are counted on tensors without data, beside their estimates, line by line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from estimate_parts.jobs import JOBS, write_job
from estimate_parts.watch import watch

ROLE = {
    "engine": "engine",
    "learner": "learner",
    "first learner": "learner",
    "other learners": "others",
    "the rllib command": "command",
}


def estimated(job: Path, *options: str) -> dict[str, int]:
    """Bytes by role, and of all processes."""
    command = [sys.executable, "-m", "rapo_rllib.cli.main", "train", "file", str(job), "--estimate", "--json", *options]
    result = subprocess.run(command, capture_output=True, text=True, cwd=job.parent)
    found = json.loads(result.stdout.splitlines()[-1])
    sizes = {
        ROLE.get(process["name"], "main"): process["host"]["bytes"]
        for process in found["processes"]
        if process["name"] in ROLE or process["name"].startswith("main")
    }
    return {**sizes, "all": found["fits"][0]["needed"]}


def compared(name: str, folder: Path) -> dict[str, Any]:
    """Estimate and measurement of a job, bytes by role."""
    options = ("--ray-num-cpus", "4")
    job = write_job(name, folder)
    before = estimated(job, *options)
    measured = watch(job, "--storage-path", str(folder / "results"), *options)
    return {"estimated": before, "measured": measured}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Estimated and measured GiB and their ratio, a line for each job and role, in Markdown."""
    lines = ["| job | process | estimated, GiB | measured, GiB | ratio |", "| --- | --- | --- | --- | --- |"]
    for name, found in results.items():
        for role, size in found["estimated"].items():
            if role not in ("command", "others") and role in found["measured"]:
                measured = found["measured"][role]
                lines.append(f"| {name} | {role} | {size / 2**30:.2f} | {measured / 2**30:.2f} | {size / measured:.2f} |")
    return "\n".join(lines)


def count(json_file: Path | None, page: Path | None) -> None:
    """Count the recipes; print, and write figures and the table of a page."""
    from estimate_parts.recipes import RECIPES, both, lines, page_table
    from learning_parts.tables import written_into

    results = {job: both(recipe) for job, recipe in RECIPES.items()}
    print(lines(results))
    if json_file:
        json_file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if page:
        text = page.read_text(encoding="utf-8")
        page.write_text(written_into(text, {"recipes": page_table(results)}, {}), encoding="utf-8")


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--folder", type=Path, default=Path("estimate_jobs"), help="where the jobs run")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--counted", action="store_true", help="count the three recipes in place of measuring jobs")
    parser.add_argument("--page", type=Path, help="with --counted: a page with a place for their table")
    arguments = parser.parse_args()
    if arguments.counted:
        return count(arguments.json, arguments.page)
    results = {}
    for number, name in enumerate(arguments.only):
        results[name] = compared(name, arguments.folder.absolute() / str(number))
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()

"""One run of ``tuned_examples/rapo_math.yaml`` or ``grpo_math.yaml`` by ``rllib train file``: SmolLM2 on word problems."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "tuned_examples"
METHODS = ("rapo", "grpo")


@dataclass(frozen=True)
class WordRun:
    """What one run is."""

    method: str
    seed: int
    folder: str
    iterations: int = 20

    @property
    def file(self) -> Path:
        """Rows of figures."""
        return Path(self.folder) / f"{self.method}-{self.seed}.jsonl"

    @property
    def command(self) -> list[str]:
        """As a user would type it. No limit of time, which would give a slower method fewer tokens."""
        job = EXAMPLES / f"{self.method}_math.yaml"
        storage = Path(self.folder) / f"{self.method}-{self.seed}"
        changes = {"seed": self.seed, "time_budget_s": "null", "evaluation_interval": 4}
        settings = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
        stop = json.dumps({"training_iteration": self.iterations})
        program = [sys.executable, "-m", "rapo_rllib.cli.main", "train", "file", str(job)]
        return [*program, *settings, "--stop", stop, "--storage-path", str(storage), "--resume"]

    def finish(self) -> None:
        """Write the rows of a run that has ended."""
        (results,) = (Path(self.folder) / f"{self.method}-{self.seed}").glob("*/*/result.json")
        lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        by_iteration = {line["training_iteration"]: line for line in lines}  # after a kill some are there twice
        rows = rows_of_results([by_iteration[iteration] for iteration in sorted(by_iteration)])
        self.file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(run: WordRun) -> None:
    """Train to the end, or go on where a killed one stopped."""
    subprocess.run(run.command, cwd=run.folder, check=True)
    run.finish()


def rows_of_results(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as of a run on the chains, with totals counted on; the last one again, marked ``done``."""
    totals = {"tokens": 0.0, "rollout_s": 0.0, "tool_calls": 0.0, "train_s": 0.0, "iteration": 0.0}
    rows: list[dict[str, Any]] = [{**totals, "accuracy": results[-1]["rapo"]["accuracy_before"]}]
    for result in results:
        sampled = result["env_runners"]
        totals["tokens"] += sampled["tokens"]["generated"]
        totals["rollout_s"] += sampled["rollout_s"]
        totals["tool_calls"] += sampled["tools"]["python"]["calls"]
        totals["train_s"], totals["iteration"] = result["time_total_s"], result["training_iteration"]
        evaluated = result.get("evaluation", {}).get("env_runners", {})
        rows.append({**totals, **({"accuracy": evaluated["accuracy"]} if "accuracy" in evaluated else {})})
    last = next(row["accuracy"] for row in reversed(rows) if "accuracy" in row)
    return [*rows, {**totals, "accuracy": last, "done": True}]

"""Results as they come, in the trial's own folder: Tune copies its file of them there only now and then.

What is killed in between loses nothing: ``--resume`` adds to Tune's file what only the journal has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.utils.util import SafeFallbackEncoder

from rapo_rllib.checkpoints.folder import replace_file
from rapo_rllib.services.json_files import parsed

JOURNAL = "result_journal.jsonl"
_RESULTS = "result.json"  # Tune's
RESULT_SHAPE = {"training_iteration": int, "timestamp?": float}


class ResultJournal(Callback):
    """Writes each result down once it is there. A remote storage has no journal."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """An iteration ended."""
        folder = str(trial.path)
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with (Path(folder) / JOURNAL).open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, cls=SafeFallbackEncoder) + "\n")


def complete_results(folder: Path) -> None:
    """Add to the results of a killed run what only its journal has, in the order of time; what was cut short is dropped."""
    results, journal = (_whole_lines(folder / name) for name in (_RESULTS, JOURNAL))
    moments = {line: _moment(line, folder) for line in (*results, *journal)}
    noted = {moments[line] for line in results}
    lines = results + [line for line in journal if moments[line] not in noted]
    if len(lines) > len(results):
        lines.sort(key=moments.__getitem__)
    if (folder / _RESULTS).exists() or lines:
        replace_file(folder / _RESULTS, b"".join(lines))


def _whole_lines(file: Path) -> list[bytes]:
    """Without what follows the last end of a line: it was being written when the run was killed."""
    if not file.exists():
        return []
    return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _moment(line: bytes, folder: Path) -> tuple[float, int]:
    """When a result came: its time in seconds since 1970, and its iteration."""
    result = parsed(line, RESULT_SHAPE, f"a line of {_RESULTS} or {JOURNAL} in {folder}")
    return result.get("timestamp", 0), result["training_iteration"]

"""Read the folders of trials, also while the trials still run: half-written lines and missing files are no errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS, TRANSCRIPTS = "result.json", "transcripts"
_DEPTH = 3  # folders below RUN_DIR in which trials are looked for: storage / experiment / trial


@dataclass
class Trial:
    """One trial of Tune, as far as it has been written."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)  # one result per iteration, in order
    config: dict[str, Any] = field(default_factory=dict)  # the whole one, if a result holds it
    params: dict[str, Any] = field(default_factory=dict)  # what the job sets
    state: str = "no result yet"
    unreadable_lines: int = 0
    iterations: dict[int, Path] = field(default_factory=dict)  # transcripts

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


def find_trials(run_dir: Path) -> list[Trial]:
    """Find the trials of a run: the folder itself if it is one, else all below it, sorted by name.

    Raises:
        ValueError: there is no such folder, or neither it nor a folder below it is a trial's.
    """
    root = run_dir.expanduser().resolve()
    if not root.is_dir():
        raise ValueError(f"RUN_DIR {run_dir}: no such folder; name a trial's or an experiment's, e.g. under ~/ray_results")
    folders = list(_trial_folders(root, _DEPTH))
    if not folders:
        raise ValueError(
            f"RUN_DIR {run_dir}: neither it nor a folder in it holds {RESULTS} or {TRANSCRIPTS}/; "
            "name the folder that Tune printed as the one of its results"
        )
    return [read_trial(folder) for folder in folders]


def _trial_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / RESULTS).is_file() or (folder / TRANSCRIPTS).is_dir():
        yield folder
    elif depth:
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not below.name.startswith(("checkpoint_", ".")):
                yield from _trial_folders(below, depth - 1)


def read_trial(folder: Path) -> Trial:
    """Read one trial. If a run was restored, earlier results from behind the restored checkpoint are left out."""
    trial = Trial(folder, params=_json_object(folder / "params.json"))
    results: dict[int, dict[str, Any]] = {}
    lines = JsonLines(folder / RESULTS)
    for row in lines:
        trial.config = row.pop("config", None) or trial.config
        number = int(row.get("training_iteration") or len(results) + 1)
        results = {earlier: kept for earlier, kept in results.items() if earlier < number}
        results[number] = row
    trial.rows = list(results.values())
    trial.config = trial.config or trial.params
    trial.unreadable_lines = lines.unreadable
    trial.iterations = dict(_transcripts(folder / TRANSCRIPTS))
    trial.state = _state(trial)
    return trial


def _state(trial: Trial) -> str:
    if trial.rows and trial.rows[-1].get("done"):
        return "ended"
    error, results = trial.folder / "error.txt", trial.folder / RESULTS
    if error.is_file() and not (results.is_file() and error.stat().st_mtime_ns < results.stat().st_mtime_ns):
        return "failed"  # and was not begun again, which leaves the file there
    return "running, or interrupted" if trial.rows else "no result yet"


def _transcripts(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob("iteration_*.jsonl")):
        number = path.stem.removeprefix("iteration_")
        if number.isdigit():
            yield int(number), path


class JsonLines:
    """The JSON objects of a file, one a line; ``unreadable`` counts the whole lines that are none.

    A last line without its line break is still being written: it is taken if it is whole and passed over if not. A file that is
    missing has no lines.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unreadable = path, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.unreadable = 0
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            for line in file:
                value = _parsed(line)
                if isinstance(value, dict):
                    yield value
                elif line.endswith(b"\n") and line.strip():
                    self.unreadable += 1


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None  # counted, or half-written


def _json_object(path: Path) -> dict[str, Any]:
    value = _parsed(path.read_bytes()) if path.is_file() else None
    return value if isinstance(value, dict) else {}

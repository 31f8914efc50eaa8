"""Keep what an agent has written on disk, so that a build resumes after a kill at any moment.

    NAME.traces.jsonl      the kept trajectories, a line each, as ``traces/recorded.py`` reads them
    NAME.progress.jsonl    what the build is of (first line), then a line per finished question

A question's trajectories are on the disk (fsync) before its line in the progress file, which says how long the trace file is
then. So whatever a kill cut short is behind the last whole line: it is cut off, and its question is asked again. Nothing is
doubled, and nothing that was finished is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt
from rapo_rllib.errors import error_kind
from rapo_rllib.services.json_files import parsed
from rapo_rllib.traces.recorded import read_trace_file
from rapo_rllib.types import ExpertTrajectory

_FORMAT = 1
_END = "traces_bytes"
_LINE = {
    **{"id": str, "rewards": [float], "ends": {str: int}, "errors": {str: int}},
    **{"tokens": int, "kept": int, "steps": int, _END: int},
}


@dataclass
class Totals:
    """Sums over the finished questions, of this run and those before it."""

    questions: int = 0
    answered: int = 0  # questions of which a trajectory was kept
    attempts: int = 0
    kept: int = 0
    steps: int = 0  # of the kept trajectories
    tokens: int = 0  # generated
    reward: float = 0.0  # of all attempts
    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # without the numbers in them

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one finished question."""
        self.questions += 1
        self.answered += line["kept"] > 0
        self.attempts += len(line["rewards"])
        self.reward += sum(line["rewards"])
        for name in ("kept", "steps", "tokens"):
            setattr(self, name, getattr(self, name) + line[name])
        self.ends.update(line["ends"])
        self.errors.update(line["errors"])


class Journal:
    """Open it with ``with``; one process at a time.

    Args:
        stem: path of both files without their endings.
        made_of: what decides what is written: agent, job, number of samples. Another one is refused.

    Raises:
        ValueError: on entering: the files are of something else, or damaged, or another process writes them.
    """

    def __init__(self, stem: Path, made_of: Mapping[str, Any]) -> None:
        self.traces_path = stem.with_name(f"{stem.name}.traces.jsonl")
        self.progress_path = stem.with_name(f"{stem.name}.progress.jsonl")
        self._made_of = json.loads(json.dumps({"format": _FORMAT, **made_of}, default=str))
        self.finished: set[str] = set()  # ids of questions
        self.totals = Totals()
        self._progress: IO[bytes] | None = None
        self._traces: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.progress_path.parent.mkdir(parents=True, exist_ok=True)
        self._progress = self.progress_path.open("a+b")
        try:
            self._lock(self._progress)
            traces_bytes = self._read(self._progress)
            self._traces = self.traces_path.open("ab")
            self._cut_to(traces_bytes)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def add(self, answered: AnsweredQuestion, kept: Sequence[Attempt], source: str) -> list[ExpertTrajectory]:
        """Write a finished question; what is returned is on the disk."""
        assert self._traces is not None and self._progress is not None
        experts = [ExpertTrajectory(answered.question, one.steps, one.reward, source) for one in kept]
        for expert in experts:
            _append(self._traces, _trace_row(expert))
        _to_disk(self._traces)
        line = {
            "id": answered.question.id,
            "rewards": [attempt.reward for attempt in answered.attempts],
            "ends": Counter(attempt.end for attempt in answered.attempts),
            "errors": Counter(error_kind(attempt.error) for attempt in answered.attempts if attempt.error),
            "tokens": sum(attempt.num_tokens for attempt in answered.attempts),
            "kept": len(kept),
            "steps": sum(len(attempt.steps) for attempt in kept),
            _END: self._traces.tell(),
        }
        _append(self._progress, line)
        _to_disk(self._progress)
        self._count(line)
        return experts

    def trajectories(self) -> Iterator[ExpertTrajectory]:
        """All kept trajectories so far. Raises ``ValueError`` if the file was damaged."""
        yield from read_trace_file(self.traces_path)

    def _count(self, line: Mapping[str, Any]) -> None:
        self.finished.add(line["id"])
        self.totals.add(line)

    def _lock(self, file: IO[bytes]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is building with {self.progress_path}: wait for it, or end it") from error

    def _read(self, file: IO[bytes]) -> int:
        """Take in the whole lines and cut the rest off; returns how long the trace file is to be."""
        file.seek(0)
        whole, lines = 0, []
        for raw in file:
            if not raw.endswith(b"\n"):
                break  # cut short by a kill
            whole += len(raw)
            lines.append(raw)
        file.truncate(whole)
        if not lines:
            _append(file, self._made_of)
            _to_disk(file)
            return 0
        self._check_made_of(journal_line(lines[0], dict, self.progress_path))
        end = 0
        for raw in lines[1:]:
            line = journal_line(raw, _LINE, self.progress_path)
            self._count(line)
            end = line[_END]
        return end

    def _check_made_of(self, before: Mapping[str, Any]) -> None:
        different = [name for name in sorted({*before, *self._made_of}) if before.get(name) != self._made_of.get(name)]
        if different:
            told = "; ".join(f"{name} was {before.get(name)!r} and is {self._made_of.get(name)!r}" for name in different)
            raise ValueError(
                f"{self.progress_path} is of another build: {told}. Give what it was made with, or name other files by --out, "
                "and another --source if both shall be told apart"
            )

    def _cut_to(self, traces_bytes: int) -> None:
        assert self._traces is not None
        size = os.fstat(self._traces.fileno()).st_size
        if size < traces_bytes:
            raise ValueError(
                f"{self.traces_path} has {size} bytes, but {self.progress_path} tells of {traces_bytes}: put the file back, or "
                "move both away"
            )
        self._traces.truncate(traces_bytes)
        self._traces.seek(0, os.SEEK_END)

    def _close(self) -> None:
        for file in (self._traces, self._progress):
            if file is not None:
                file.close()
        self._traces = self._progress = None


def journal_line(raw: bytes, shape: Any, path: Path) -> dict[str, Any]:
    """Parse a line of a journal. Raises ``ValueError`` where it is damaged."""
    try:
        line: dict[str, Any] = parsed(raw, shape, str(path))
    except ValueError as error:
        raise ValueError(f"{error}: move it away, and what it belongs to") from error
    return line


def _trace_row(expert: ExpertTrajectory) -> dict[str, Any]:
    question = expert.question
    return {
        "id": question.id,
        "source": expert.source,
        "question": question.text,
        "gold": [question.answer, *question.aliases],
        "correct": True,
        "reward": expert.reward,
        "steps": list(expert.steps),
    }


def _append(file: IO[bytes], row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())

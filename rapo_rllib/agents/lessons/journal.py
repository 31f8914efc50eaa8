"""Keep the lessons that an agent has written on disk, so that none is written twice: a line each, in ``NAME.lessons.jsonl``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rapo_rllib.agents.journal import append_row, journal_line, to_disk, whole_lines
from rapo_rllib.traces.exported import row_of_trace, trace_of_row
from rapo_rllib.types import StepTrace

_LINE = {"question_id": str, "number": int, "tokens": int, "rows": [dict]}


class LessonJournal:
    """Open it with ``with``, while the build's own journal is open: that one keeps other processes out.

    Args:
        path: of the file.
        finished: ids of the questions whose attempts are on the disk; None are: what the file holds is of a build that is gone.

    Raises:
        ValueError: on entering: the file is damaged, or of another build.
    """

    def __init__(self, path: Path, finished: Collection[str]) -> None:
        self.path, self._finished = path, finished
        self.done: set[tuple[str, int]] = set()  # question id and number of the lesson
        self.tokens = self.written = 0  # generated for them; of how many something came

    def __enter__(self) -> Self:
        self._file = self.path.open("a+b")
        try:
            if not self._finished:
                self._file.truncate(0)
            for raw in whole_lines(self._file):
                self._count(self._parsed(raw))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, question_id: str, number: int, tokens: int, rows: Sequence[StepTrace]) -> None:
        """Write a lesson, or that nothing came of it (no ``rows``); then it is on the disk."""
        line = {"question_id": question_id, "number": number, "tokens": tokens, "rows": [row_of_trace(row) for row in rows]}
        append_row(self._file, line)
        to_disk(self._file)
        self._count(line)

    def rows(self) -> Iterator[StepTrace]:
        """All lessons so far, as rows of the buffer."""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                for row in self._parsed(raw)["rows"]:
                    yield trace_of_row(row, f"{self.path}, line {number}")

    def _count(self, line: dict[str, Any]) -> None:
        if line["question_id"] not in self._finished:
            raise ValueError(f"{self.path} is of another build: move it away, and what it belongs to")
        self.done.add((line["question_id"], line["number"]))
        self.tokens += line["tokens"]
        self.written += bool(line["rows"])

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        return journal_line(raw, _LINE, self.path)

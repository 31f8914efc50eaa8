"""Keep what an evaluation has finished on disk, so that the same command resumes after a kill at any moment.

    evaluation.json      what it is of: models, questions, budgets, sampling; written first
    transcripts.jsonl    a row per attempt, all rows of a question together, as questions are finished

A question is finished when all its rows are there whole and none of them says that the agent itself failed (an endpoint that
was down answers another time). Everything else is cut out on entering, and asked again.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from rapo_rllib.checkpoints.folder import replace_file
from rapo_rllib.services.json_files import parsed, read_json

MADE_OF, TRANSCRIPTS = "evaluation.json", "transcripts.jsonl"
Key = tuple[str, str, str]  # model, benchmark, question id
_ROW = {
    **dict.fromkeys(("model", "benchmark", "question_id", "end?", "error?", "score_failure?"), str),
    **dict.fromkeys(("agent_failed", "correct?", "format_ok?", "exact_match?"), bool),
    **dict.fromkeys(("sample?", "tool_calls?", "retrievals?", "failed_retrievals?", "tokens?"), int),
    **dict.fromkeys(("seconds?", "f1?"), float),
}


class EvaluationJournal:
    """Open it with ``with``; one process at a time.

    Args:
        folder: of the evaluation; made if it is missing.
        made_of: what decides the answers. A folder of something else is refused.
        samples: attempts at each question.

    Raises:
        ValueError: on entering: the folder is of another evaluation or damaged, or another process writes into it.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any], samples: int) -> None:
        self._folder, self._samples = folder, samples
        self._made_of = json.loads(json.dumps(made_of, default=str))
        self.finished: dict[Key, list[dict[str, Any]]] = {}  # rows of each question, by attempt
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._opened()
        try:
            self._check_made_of()
            content = file.read()
            self._take_in(content)
            kept = b"".join(_line(row) for rows in self.finished.values() for row in rows)
            if kept != content:
                replace_file(self._folder / TRANSCRIPTS, kept)
                file.close()
                file = self._opened()
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._file is not None
        self._file.close()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the attempts at a question; they are in the file when this returns."""
        assert self._file is not None
        self._file.write(b"".join(_line(row) for row in rows))
        self._file.flush()

    def of(self, model: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Return what a model has finished: its rows by benchmark and question id."""
        return {(benchmark, question): rows for (name, benchmark, question), rows in self.finished.items() if name == model}

    def _opened(self) -> IO[bytes]:
        """The rows, to be read and added to, by this process alone."""
        file = (self._folder / TRANSCRIPTS).open("a+b")
        file.seek(0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ValueError(f"--output {self._folder}: another process is evaluating into it; name another folder") from error
        return file

    def _check_made_of(self) -> None:
        file = self._folder / MADE_OF
        if not file.exists():
            if (self._folder / TRANSCRIPTS).stat().st_size:
                raise ValueError(f"--output {self._folder}: holds transcripts of another evaluation: name another folder")
            replace_file(file, json.dumps(self._made_of, indent=1).encode() + b"\n")
            return
        before = read_json(file)
        different = sorted(name for name in {*before, *self._made_of} if before.get(name) != self._made_of.get(name))
        if different:
            raise ValueError(
                f"--output {self._folder}: was begun by another command: {', '.join(different)} differ from {MADE_OF}; repeat "
                "that command to go on, or name another folder"
            )

    def _take_in(self, content: bytes) -> None:
        found: dict[Key, list[dict[str, Any]]] = {}
        for line in content.splitlines(keepends=True):
            if line.endswith(b"\n"):  # else it was being written when the process was killed
                row = parsed(line, _ROW, f"--output {self._folder}: a line of {TRANSCRIPTS}")
                found.setdefault((row["model"], row["benchmark"], row["question_id"]), []).append(row)
        for key, rows in found.items():
            if len(rows) == self._samples and not any(row["agent_failed"] for row in rows):
                self.finished[key] = rows


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"

"""Journal of an agent's answers on disk: after a kill at any moment, the same command resumes.

    settings.json        what the answers depend on, written first: another command is refused
    transcripts.jsonl    a row per attempt; the rows of a question stand together, and are written at once

A question is finished when all its rows are complete, and agent or environment failed in few enough of them (an endpoint that
was down may answer later). On entering, the rows of unfinished questions are cut out; the questions are asked again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, get_origin, get_type_hints

from rapo_rllib.agents.agent import AnsweredQuestion, Attempt
from rapo_rllib.envs.base import LazyQuestions
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.services.json_files import parsed
from rapo_rllib.types import Question

SETTINGS, TRANSCRIPTS = "settings.json", "transcripts.jsonl"
Key = tuple[str, str, str]  # model, benchmark, question id
_ATTEMPT = {name: [str] if get_origin(kind) is tuple else kind for name, kind in get_type_hints(Attempt).items()}
_ROW = {**dict.fromkeys(("model", "benchmark", "question_id", "question"), str), "gold": [str], **_ATTEMPT}


class Journal:
    """Attempts at questions in a folder, opened by ``with``, by one process at a time.

    Args:
        folder: of the command; made if it is missing.
        made_of: all settings that the answers depend on, as JSON values. A folder with other settings is refused.
        samples: attempts at each question.
        may_fail: the most failed attempts of a finished question.

    Raises:
        ValueError: on entering: the folder is of another command or damaged, or another process writes into it.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any], samples: int, may_fail: int = 0) -> None:
        self.folder, self.transcripts = folder, folder / TRANSCRIPTS
        self._made_of, self._samples, self._may_fail = made_of, samples, may_fail
        self._places: dict[Key, int] = {}  # byte at which the rows of a question begin

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._check_made_of(stack.enter_context((self.folder / SETTINGS).open("a+b")))
            self._cut_out_unfinished()
            self._file: IO[bytes] = stack.enter_context(self.transcripts.open("a+b"))
            _sync(self.folder)  # so that the names of its files are on the disk, too
            self._files = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.close()

    def __contains__(self, key: Key) -> bool:
        """Return whether all attempts at a question have been written, now or by an earlier process."""
        return key in self._places

    def add(self, model: str, benchmark: str, answered: AnsweredQuestion) -> None:
        """Write the attempts at a question; they are on the disk when this returns."""
        question = answered.question
        asked = {"question": question.text, "gold": [question.answer, *question.aliases]}
        about = {"model": model, "benchmark": benchmark, "question_id": question.id, **asked}
        lines = (json.dumps(about | asdict(attempt), ensure_ascii=False) + "\n" for attempt in answered.attempts)
        self._places[model, benchmark, question.id] = self._file.seek(0, os.SEEK_END)
        self._file.write("".join(lines).encode("utf-8", "backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self, key: Key) -> AnsweredQuestion:
        """Read a question that the journal has, with its attempts."""
        self._file.seek(self._places[key])
        return self._answered(list(islice(self._file, self._samples)))[1]

    def outcomes(self, key: Key) -> tuple[Attempt, ...]:
        """Read the attempts at a question without their texts, so that the attempts at all questions fit into memory."""
        return tuple(replace(attempt, steps=()) for attempt in self.read(key).attempts)

    def is_finished(self, attempts: Sequence[Attempt]) -> bool:
        """Check whether at most ``may_fail`` attempts at a question failed, so that it is not asked again."""
        return sum(attempt.failed for attempt in attempts) <= self._may_fail

    def _check_made_of(self, file: IO[bytes]) -> None:
        """Write the settings that the answers depend on, or compare those in ``file``, which stays locked while it is open."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{self.folder}: another process writes into it: wait for it, or name another --output") from error
        file.seek(0)
        if content := file.read():
            before = flattened(parsed(content, dict, str(self.folder / SETTINGS)), ".")
            now = flattened(self._made_of, ".")
            if told := differing(before, now):
                raise ValueError(
                    f"{self.folder / SETTINGS} is of another command, with other {', '.join(told)}. Repeat that command to go "
                    "on, or name another --output"
                )
        elif self.transcripts.exists():
            raise ValueError(f"{self.folder} holds {TRANSCRIPTS} of another command: name another --output")
        else:
            file.write(json.dumps(self._made_of, indent=1).encode() + b"\n")
            file.flush()
            _sync(self.folder / SETTINGS)

    def _cut_out_unfinished(self) -> None:
        """Copy the finished questions; a smaller copy replaces the file. A power cut leaves one of the two, whole."""
        if not self.transcripts.exists():
            return
        partial = self.folder / f".{TRANSCRIPTS}.partial"
        with self.transcripts.open("rb") as file, partial.open("wb") as copy:
            for lines in _blocks(file, self._samples):
                key, answered = self._answered(lines)
                if self.is_finished(answered.attempts):
                    self._places[key] = copy.tell()
                    copy.writelines(lines)
        if partial.stat().st_size < self.transcripts.stat().st_size:
            _sync(partial)
            partial.replace(self.transcripts)
        else:
            partial.unlink()

    def _answered(self, lines: list[bytes]) -> tuple[Key, AnsweredQuestion]:
        rows = [parsed(line, _ROW, f"a line of {self.transcripts}") for line in lines]
        about, attempts = rows[0], ({name: row[name] for name in _ATTEMPT} for row in rows)
        gold = about["gold"] or [""]
        question = Question(about["question_id"], about["question"], gold[0], tuple(gold[1:]))
        found = tuple(Attempt(**one | {"steps": tuple(one["steps"]), "retrieved": tuple(one["retrieved"])}) for one in attempts)
        return (about["model"], about["benchmark"], question.id), AnsweredQuestion(question, found)


def sum_of_questions(questions: Iterable[Question]) -> str:
    """Compute a checksum of texts and answers, by which other questions with the same ids are noticed.

    ``LazyQuestions`` follow from the environment, whose settings are compared, too: of these only the first is read.
    """
    digest = hashlib.sha256()
    for question in questions[:1] if isinstance(questions, LazyQuestions) else questions:
        said = [question.id, question.text, question.answer, *question.aliases, str(question.seed)]
        digest.update("\0".join((*said, "")).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the names whose values differ, or that one side lacks."""
    return sorted(key for key in {*before, *now} if key not in before or key not in now or before[key] != now[key])


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _blocks(file: IO[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield the rows of each complete question; rows that were being written at a kill are left out."""
    while len(lines := list(islice(file, size))) == size and lines[-1].endswith(b"\n"):
        yield lines

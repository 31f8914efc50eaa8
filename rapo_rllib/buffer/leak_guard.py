r"""Keep evaluation questions out of the buffer: with steps to their answers in it, every evaluation would be worthless.

    evaluation questions --LeakGuard--> import, build: left out and counted;  stats: reported;  a job's start: refused

Two questions are the same if their :func:`normalised` texts are equal. That is a narrow match, since different problems must
not collide ("What is 3 + 5?", "What is 3 - 5?", "What is 35?"):

    1. quotes, dashes and the minus sign take their plain form
    2. super- and subscripts are written out (x² = x^2, not x2), a one-character fraction is set apart (1½ = 1 1/2, not 11/2)
    3. Unicode NFKC, then casefold
    4. marks that only end a word are removed: . , ; ? and … before white space or the end; ! and : there, if a word of two or
       more letters precedes ("Help!", not "5!", "n!" or "3 : 4"). Inside a word or number all stay ("1.5", "1,000", "f(2,3)").
    5. white space becomes single spaces; none at the ends

Everything else stays: digits, operators, brackets, LaTeX.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rapo_rllib.types import ExpertTrajectory, StepTrace

if TYPE_CHECKING:
    from rapo_rllib.buffer.store import StepTraceBuffer

_PLAIN = str.maketrans(dict.fromkeys("‘’‚′", "'") | dict.fromkeys("“”„″", '"') | dict.fromkeys("‐‑‒–—−", "-") | {"⁄": "/"})
_SCRIPTS = {"<super>": "^", "<sub>": "_", "<fraction>": " "}
_ENDING_MARKS = re.compile(r"(?<=\S)[.,;:?!…]+(?=\s|$)")

REFUSED = "question of the evaluation"  # a reason for which traces are left out
Traced = TypeVar("Traced", ExpertTrajectory, StepTrace)


def normalised(question: str) -> str:
    r"""Return the text that decides whether two questions are the same; see the module.

    >>> normalised("What’s  2² + 1.5?")
    "what's 2^2 + 1.5"
    """
    text = question.translate(_PLAIN)
    text = unicodedata.normalize("NFKC", _scripts_written_out(text)).translate(_PLAIN).casefold()
    return " ".join(_ENDING_MARKS.sub(_kept_marks, text).split())


def _kept_marks(found: re.Match[str]) -> str:
    """Return the marks to keep at a word's end: ! and : after anything but a word, since they may be operators."""
    after_word = found.string[max(found.start() - 2, 0) : found.start()].isalpha() and found.start() >= 2
    return "" if after_word else "".join(mark for mark in found[0] if mark in "!:")


def _scripts_written_out(text: str) -> str:
    if text.isascii():
        return text
    pieces, last = [], ""
    for character in text:
        kind = unicodedata.decomposition(character).partition(" ")[0]
        if kind in _SCRIPTS and (kind != last or kind == "<fraction>"):
            pieces.append(_SCRIPTS[kind])
        pieces.append(character)
        last = kind
    return "".join(pieces)


def digest_of(question: str) -> bytes:
    """Return 16 bytes that stand for the normalised text of a question."""
    return hashlib.blake2b(normalised(question).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def question_of(item: ExpertTrajectory | StepTrace) -> str:
    """Return the text of the question of a trajectory or a step trace."""
    return item.question.text if isinstance(item, ExpertTrajectory) else item.question


class LeakGuard:
    """The set of evaluation questions. It keeps only digests of their texts.

    Args:
        questions: their texts; empty texts (of environments that are asked by seed) are ignored.
    """

    def __init__(self, questions: Iterable[str]) -> None:
        self.digests = {digest_of(text) for text in questions if text.strip()}
        self.refused: Counter[str] = Counter()  # questions that were refused, each with the number of its traces

    def __len__(self) -> int:
        return len(self.digests)

    def leaks(self, question: str) -> bool:
        """Return whether ``question`` is one of the evaluation questions."""
        return bool(self.digests) and digest_of(question) in self.digests

    def keep(self, items: Iterable[Traced]) -> Iterator[Traced]:
        """Yield the trajectories or step traces that answer no evaluation question; count the others in ``refused``."""
        for item in items:
            if self.leaks(question := question_of(item)):
                self.refused[question] += 1
            else:
                yield item


def covered_questions(buffer: StepTraceBuffer, questions: Iterable[str]) -> tuple[int, int] | None:
    """Count the training questions that have step traces, and all training questions; None if questions have no texts.

    Retrieval can show a step of the same question only if the buffer has one; steps of other questions rarely fit. Raises
    ``RetrievalError`` when Milvus does not answer.
    """
    known = LeakGuard(questions)
    if not len(known):
        return None
    return len(known.digests & {digest_of(text) for text in set(buffer.questions())}), len(known)


def refuse_leaks(buffer: StepTraceBuffer, guard: LeakGuard) -> None:
    """Refuse a buffer that holds step traces of evaluation questions; reads the questions of all its traces.

    Raises:
        ValueError: the buffer holds such traces.
        RetrievalError: Milvus does not answer.
    """
    if not len(guard):
        return
    stored = Counter(buffer.questions())
    found = {question: count for question, count in stored.items() if guard.leaks(question)}
    if found:
        raise ValueError(
            f"step_trace_buffer: the buffer in collection {buffer.collection!r} at {buffer.uri} holds {sum(found.values()):,} "
            f"step traces of {len(found):,} evaluation questions, such as {next(iter(found))[:120]!r}. `rllib buffer stats "
            f"--evaluation FILE --uri {buffer.uri} --collection {buffer.collection}` lists them; build another buffer without "
            "them (`rllib buffer import --evaluation FILE` leaves them out), or evaluate on other questions."
        )

"""What an agent is asked for a lesson, and what is taken of its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rapo_rllib.agents.lessons.evidence import Tried
from rapo_rllib.settings import ProtocolSettings

ATTEMPTS = "{attempts}"
PROMPT = (
    "You read attempts at one question, or at questions that are alike. Each is marked as right or wrong.\n\n"
    "{attempts}\n\n"
    "Write one short lesson for the next solver of a question of this kind: what the right attempts did, or where the wrong "
    "ones went wrong and what to do there instead. One to three sentences. Do not give the answer to any of the questions, and "
    "do not solve one. Write nothing but the lesson."
)
LEAST_ROOM = 16  # tokens of an attempt: with fewer it says nothing
_CUT = " [...] "


@dataclass(frozen=True)
class LessonPlan:
    """How many lessons are drawn, and from what."""

    per_question: int = 1
    traces: int = 4  # attempts that each is drawn from, at most
    near: int = 0  # questions nearest to it, by the embedder of the buffer, whose attempts are shown beside its own
    max_tokens: int = 128
    prompt: str = PROMPT

    @property
    def attempts(self) -> int:
        """How many attempts at a question are kept for its lessons."""
        return self.per_question * self.traces

    def __post_init__(self) -> None:
        for name, key, least in (
            ("per_question", "--lessons", 1),
            ("traces", "--lesson-traces", 2),
            ("near", "--lesson-near", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{key} = {getattr(self, name)}: must be {least} or more")
        if self.max_tokens < LEAST_ROOM:
            raise ValueError(f"--lesson-tokens = {self.max_tokens}: must be {LEAST_ROOM} or more")
        if self.prompt.count(ATTEMPTS) != 1:
            raise ValueError(
                f"--lesson-prompt: the text must hold {ATTEMPTS} once, where the attempts are to stand; it does "
                f"{self.prompt.count(ATTEMPTS)} times"
            )


def lesson_prompt(plan: LessonPlan, shown: Sequence[Tried], room: int, length: Callable[[str], int]) -> str:
    """The question to the agent.

    Args:
        plan: with the text around the attempts.
        shown: attempts, at one or several questions.
        room: tokens of the whole text.
        length: counts the tokens of a text as the agent will read it.

    Raises:
        ValueError: there is no room for so many attempts.
    """
    around = length(plan.prompt.replace(ATTEMPTS, _attempts(shown, ["" for _ in shown])))
    each = (room - around) // len(shown) - 2  # texts that are joined may have a token more
    if each < LEAST_ROOM:
        raise ValueError(
            f"--lesson-traces = {plan.traces}: {len(shown)} attempts have no room beside question and instructions ({around} "
            f"tokens) in {room} tokens, which are max_prompt_tokens + max_response_tokens less --lesson-tokens; show fewer, or "
            "set max_response_tokens higher"
        )
    texts = [shortened("".join(one.steps).strip(), each, length) for one in shown]
    return plan.prompt.replace(ATTEMPTS, _attempts(shown, texts))


def _attempts(shown: Sequence[Tried], texts: Sequence[str]) -> str:
    """The attempts under their questions, each with its mark."""
    parts: list[str] = []
    for question in dict.fromkeys(one.question for one in shown):
        parts.append(f"Question: {question.strip()}")
        for number, (one, text) in enumerate(zip(shown, texts, strict=True), start=1):
            if one.question == question:
                parts.append(f"Attempt {number}, {'right' if one.right else 'wrong'}:\n{text}")
    return "\n\n".join(parts)


def shortened(text: str, room: int, length: Callable[[str], int]) -> str:
    """``text``, or as much of its beginning and of its end as ``room`` tokens hold.

    Example: ten letters where every letter is a token and ``room`` is 9: the first, `` [...] ``, and the last.
    """
    if length(text) <= room:
        return text
    least, most = 0, len(text)  # characters that are kept: with ``least`` it fits, with ``most`` it does not
    while most - least > 1:
        kept = (least + most) // 2
        least, most = (kept, most) if length(_ends(text, kept)) <= room else (least, kept)
    return _ends(text, least)


def _ends(text: str, kept: int) -> str:
    first, last = kept - kept // 2, kept // 2
    return text[:first] + _CUT + text[len(text) - last :]


def read_lesson(written: str, settings: ProtocolSettings) -> str:
    r"""The lesson in what the agent wrote: without thoughts, without a tag or a word that only names it. Empty: there is none.

    >>> read_lesson("<think>Hm.</think>\\nLesson: Add first.", ProtocolSettings())
    'Add first.'
    """
    _, closed, behind = written.rpartition(f"</{settings.think_tag}>")
    text = behind if closed else written
    if f"<{settings.think_tag}>" in text:  # it was still thinking when its tokens ended
        return ""
    text = re.sub(f"</?{re.escape(settings.lesson_tag)}>", "", text)
    return re.sub(r"^\W*lesson\W*:[*\s]*", "", text.strip(), flags=re.IGNORECASE).strip()

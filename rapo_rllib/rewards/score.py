"""Types of every scorer: answer, question, episode -> ``Score``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question


@dataclass(frozen=True)
class Score:
    """The worth of an answer, and whether it counts as correct.

    Example: ``Score(0.8, False)``; with named terms ``Score(0.7, True, {"correct": 1.0, "length": -0.3})``.
    """

    value: float  # in [0, 1] unless the scorer is a user's own
    correct: bool
    terms: Mapping[str, float] = field(default_factory=dict)  # what ``value`` is made of; empty: one term, ``correct``
    failure: str = ""  # in one word why the scorer itself could not judge, for counting
    steps: Sequence[float] = ()  # reward of each of the episode's steps, in addition to the value


WRONG = Score(0.0, False)


@dataclass(frozen=True)
class EpisodeStep:
    """One generated step, or one of its several calls, with the tool's output."""

    text: str
    tool: str | None = None  # tag of the tool that was called
    observation: str = ""  # its bare output
    tool_error: str | None = None  # in one word
    turn: int = 0  # index of the generated step, which may hold several calls


@dataclass(frozen=True)
class Episode:
    """The texts of the policy and of its tools; without step traces that were retrieved."""

    steps: tuple[EpisodeStep, ...]
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    turn_ended: bool = True  # the policy ended its turn with the last step: EOS follows it, at once or after blanks
    answer_text: str = ""  # of the native format: the turn that holds the answer, without thoughts

    @property
    def text(self) -> str:
        """All steps with the rendered outputs of their tools."""
        shown = (s.text if s.tool is None else s.text + render_observation(s.observation, self.settings) for s in self.steps)
        return "".join(shown)

    @property
    def tool_errors(self) -> int:
        """Number of calls that failed."""
        return sum(step.tool_error is not None for step in self.steps)


class Scorer(Protocol):
    """Function that scores an episode at its end. Called from several threads."""

    def __call__(self, answer: str | None, question: Question, episode: Episode) -> Score:
        r"""Score an episode. ``answer``: its answer's last ``\boxed{}``, else its whole answer; None: it gave no answer."""


def accepted_answers(question: Question) -> tuple[str, ...]:
    """Return all accepted answers."""
    return (question.answer, *question.aliases)


def asks_words(question: Question) -> bool:
    """Return whether a question's source says that its answer is words, not mathematics."""
    return question.source.endswith("/qa")


def of_answer(score: Callable[[str, Question], Score]) -> Scorer:
    """Return a scorer that looks at the answer only; without an answer the score is 0."""

    def scorer(answer: str | None, question: Question, episode: Episode) -> Score:
        return WRONG if answer is None else score(answer, question)

    return scorer

"""Attempts of an off-policy agent at a question, as texts in the protocol of the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rapo_rllib.types import Question


@dataclass(frozen=True)
class Attempt:
    r"""One trajectory.

    Example: ``Attempt(("<python>3 + 5</python>\n<result>\n8\n</result>\n", "<answer>8</answer>"), 1.0, "answer")``
    """

    steps: tuple[str, ...]  # each with its observation
    reward: float
    end: str  # answer, eos, length (of tokens or steps), tool_limit or error
    error: str = ""
    num_tokens: int = 0  # that the agent generated
    agent_failed: bool = False  # the error is the agent's own: another time it may write this trajectory
    correct: bool = False  # as the environment says
    format_ok: bool = False  # the same
    num_tool_calls: int = 0
    retrieved: tuple[str, ...] = ()  # ids of the step traces that it was shown, in order
    failed_retrievals: int = 0  # the buffer did not answer; it went on without
    score_failure: str = ""  # why the scorer could not judge: "judge/unreachable"
    seconds: float = 0.0  # from its question to its end


@dataclass(frozen=True)
class AnsweredQuestion:
    """All attempts at one question."""

    question: Question  # its text as the environment asks it
    attempts: tuple[Attempt, ...]


OnAttempt = Callable[[], None]  # called whenever an attempt has ended

"""What the policy wrote beside the nearest steps of the Step-Trace Buffer: how these are found, and written (StepAgent).

Trajectory --step_queries--> HistoryQuery (x steps) --buffer--> RetrievedTrace (x steps) --preferred_step--> PreferredStep
"""

from __future__ import annotations

from enum import Enum

from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.expert_tokens import split_observation
from rapo_rllib.protocol.steps import parse_step, render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import HistoryQuery, PreferredStep, Question, Trajectory


class NotPreferred(Enum):
    """Why a step of the buffer is not preferred to the policy's own."""

    SAME = "same"  # the policy wrote it
    ANSWERS = "answers"  # its author gives an answer there: help would teach to guess
    TOO_LONG = "too_long"  # it passes the response budget


def step_queries(
    trajectory: Trajectory, question: Question, protocol: ProtocolSettings, remembers_shown: bool
) -> list[HistoryQuery]:
    """What the trajectory would have asked the buffer with before each of its steps, ``[K]``.

    Args:
        trajectory: ended.
        question: whose accepted answers a filter of the buffer may hide.
        protocol: how observations are rendered.
        remembers_shown: whether shown steps are part of a history (``retrieval_query: history``).
    """
    shown: dict[int, str] = {}
    for retrieval in trajectory.retrievals:
        if remembers_shown and retrieval.is_step:
            shown[retrieval.after_step] = shown.get(retrieval.after_step, "") + retrieval.text.rstrip() + "\n"
    found, history = [], shown.get(-1, "")
    for index, step in enumerate(trajectory.steps):
        version, answers = trajectory.policy_version, question.answers
        found.append(HistoryQuery(trajectory.question_text, history.strip(), question.id, "", version, answers))
        history += step.as_text + render_observation(step.observation, protocol) + shown.get(index, "")
    return found


def preferred_step(
    trajectory: Trajectory, index: int, text: str, question: Question, chat: ChatProtocol, max_tokens: int
) -> PreferredStep | NotPreferred:
    """A step of the buffer as the policy would have written it in the place of its own; or why it is not preferred.

    Args:
        trajectory: that has a step ``index``.
        index: of the policy's own step.
        text: of the buffer's step, with its result.
        question: of the trajectory.
        chat: encodes.
        max_tokens: budget of a response.
    """
    own = trajectory.steps[index]
    written = split_observation(text.strip(), chat.settings)[0]
    tokens = tuple(chat.encode(written))
    if written == own.as_text.strip() or list(tokens) == trajectory.token_ids[own.start : own.stop]:
        return NotPreferred.SAME
    if parse_step(written, chat.settings, ()).answer is not None or shows_answer(written, question.answers):
        return NotPreferred.ANSWERS
    if own.start + len(tokens) > max_tokens:
        return NotPreferred.TOO_LONG
    return PreferredStep(index, tokens)

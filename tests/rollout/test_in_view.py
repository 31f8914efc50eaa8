"""Steps that the policy wrote alone, scored again with a step trace before them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scripted import ByteTokenizer

from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.objective.view_advantage import view_advantages
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.in_view import score_in_view
from rapo_rllib.settings import ObjectiveSettings, ProtocolSettings
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

CHAT = ChatProtocol(ByteTokenizer(), ProtocolSettings(system_prompt=""))
QUESTION = Question("q", "1 + 1 + 1", "3")
TRACE = RetrievedTrace(StepTrace("t", "1 + 1 + 1", "", "<calc>2+1</calc>", 1.0), 0.9)
SHOWN = CHAT.retrieved(TRACE.trace.text).token_ids
FIRST, RESULT, SECOND = "<calc>1+1</calc>", "\n<result>\n2\n</result>\n", "<answer>3</answer>"


def trajectory(*, retrieved: bool = False, reward: float = 0.0) -> Trajectory:
    made = Trajectory("q", CHAT.encode("prompt"), QUESTION.text, reward=reward, end="answer")
    for text, observation in ((FIRST, "2"), (SECOND, "")):
        ids = CHAT.encode(text)
        step = made.append_policy(ids, [-1.0] * len(ids), [0.5] * len(ids))
        step.text, step.observation = text, observation
        if observation:
            made.append_observation(CHAT.encode(RESULT))
        if observation and retrieved:
            made.append_retrieved(SHOWN, TRACE)
    return made


def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """An engine to which every token is twice as likely behind a step trace, -1 nat else."""
    shown = bytes(SHOWN)
    return [
        [-1.0 + math.log(2) * (shown in bytes(ids[:place])) for place in range(1, len(ids))] for ids in map(list, sequences)
    ]


class Asked:
    """Answers every history but those of ``without`` steps, and remembers what it was asked."""

    def __init__(self, answer: RetrievedTrace | None = TRACE) -> None:
        self.queries: list[HistoryQuery] = []
        self._answer = answer

    def __call__(self, queries: Sequence[HistoryQuery]) -> list[RetrievedTrace | None]:
        self.queries += queries
        return [self._answer for _ in queries]


@pytest.mark.parametrize(("shift", "advantage"), [(0.0, 0.0), (1.0, 0.731), (-1.0, -0.269), (9.0, 1.0), (-9.0, 0.0)])
def test_the_advantage_by_hand(shift: float, advantage: float) -> None:
    assert view_advantages([shift]) == pytest.approx([advantage], abs=5e-4)


def test_steps_behind_another_one_are_scored_with_and_without() -> None:
    retriever, one = Asked(), trajectory()
    score_in_view([TrajectoryGroup(QUESTION, [one])], CHAT, retriever, score, longest=500)
    assert [query.history for query in retriever.queries] == [(FIRST + RESULT).strip()]
    second = one.steps[1]
    expected = [0.0] * second.start + [math.log(2)] * (second.stop - second.start)
    assert one.view_shifts == pytest.approx(expected)


def test_who_retrieved_and_what_finds_nothing_or_has_no_room_is_left_alone() -> None:
    helped, alone = trajectory(retrieved=True), trajectory()
    group = TrajectoryGroup(QUESTION, [helped, alone])
    score_in_view([group], CHAT, Asked(None), score, longest=500)
    score_in_view([group], CHAT, Asked(), score, longest=len(alone.prompt_ids) + len(alone.token_ids) + len(SHOWN) - 1)
    assert not helped.view_shifts and not alone.view_shifts
    score_in_view([group], CHAT, Asked(), score, longest=len(alone.prompt_ids) + len(alone.token_ids) + len(SHOWN))
    assert not helped.view_shifts and alone.view_shifts


def test_a_group_without_signal_learns_from_what_was_in_view() -> None:
    made = TrajectoryGroup(QUESTION, [trajectory(), trajectory()])
    assert sample_groups([made], ObjectiveSettings())[0] == []
    score_in_view([made], CHAT, Asked(), score, longest=500)
    ((group,), _) = sample_groups([made], ObjectiveSettings(view_advantage_weight=0.5))
    for sample, one in zip(group.samples, made.trajectories, strict=True):
        second = one.steps[1]
        expected = np.zeros(len(one.token_ids))
        expected[second.start : second.stop] = 0.5 * math.log(2) * 2 / 3
        np.testing.assert_allclose(sample.advantages, expected, rtol=1e-6)

"""StepAgent's comparison on the driver: what the buffer is asked, what trajectories get, what is counted, what is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pytest
import torch
from tiny_tokenizers import byte_tokenizer

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.step_comparison import StepComparison
from rapo_rllib.errors import RetrievalError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

CALL, ANSWER = "<calc>12*3</calc>", "<answer>12</answer>"
RESULT = "\n<result>\n12\n</result>\n"


class Letters:
    """Embeds a text as how often it has each of four letters of a call or an answer."""

    dim = 4

    def encode(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.array([[history.count(sign) for sign in "*+n>"] for _, history in pairs], dtype=np.float32) / 4


class Buffer:
    """The part of a Step-Trace Buffer that is read, with the same step for every history of the question ``known``."""

    def __init__(self, known: str = "q0?") -> None:
        self.known, self.batches, self.embedder, self.silent = known, [], Letters(), False
        self.without: Set[str] = frozenset()

    def source_weights(self) -> dict[str, float]:
        return {"bad": 0.0, "good": 1.0}

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int, without: Set[str]) -> list[list[RetrievedTrace]]:
        if self.silent:
            raise RetrievalError("Milvus is gone")
        self.batches.append(list(queries))
        self.without = without
        trace = StepTrace("t", self.known, "", CALL + RESULT, 1.0, source="good")
        return [[RetrievedTrace(trace, 0.9)] if query.question == self.known else [] for query in queries]


def group(name: str, *texts: Sequence[str]) -> TrajectoryGroup:
    members = []
    for steps in texts:
        made = Trajectory(name, [1], question_text=f"{name}?", end="answer")
        for text in steps:
            tokens = list(text.encode())
            made.append_policy(tokens, [-1.0] * len(tokens), [1.0] * len(tokens)).text = text
        members.append(made)
    return TrajectoryGroup(Question(name, f"{name}?", "99"), members)


def comparison(form: str, buffer: Buffer, **keys: Any) -> StepComparison:
    config = RAPOConfig().environment("rapo/word_problems").training(preset=f"stepagent_{form}", **keys)
    settings = config.settings
    chat = ChatProtocol(byte_tokenizer(), settings.protocol) if form == "implicit" else None
    return StepComparison(settings, buffer, chat)  # type: ignore[arg-type]


def test_the_implicit_form_prefers_and_counts_every_step() -> None:
    buffer = Buffer()
    groups = [group("q0", [CALL, ANSWER], [ANSWER], [ANSWER]), group("q1", [ANSWER])]
    groups[0].trajectories[2].end = "error"
    found = comparison("implicit", buffer).take(groups)
    first, second, failed = groups[0].trajectories
    assert [(one.step, byte_tokenizer().decode(one.token_ids)) for one in first.preferred] == [(1, CALL)]
    assert [one.step for one in second.preferred] == [0] and not failed.preferred
    assert not groups[1].trajectories[0].preferred
    assert found == pytest.approx(
        {
            **{"steps": 4, "unanswered": 0, "not_found": 1, "similarity": 0.9, "own_question": 1},
            **{"same": 1, "answers": 0, "too_long": 0},
        }
    )
    (asked,) = buffer.batches  # one search; the two that begin with the question ask once
    assert len(asked) == 3 and buffer.without == {"bad"}


def test_the_inverse_form_learns_and_pays() -> None:
    keys = {"step_comparison_weight": 0.5, "step_reward_bound": 2.0, "discriminator_inertia": 0.01}
    compare = comparison("inverse", Buffer(), **keys)

    def again() -> tuple[dict[str, float], list[list[float]]]:
        groups = [group("q0", [CALL, ANSWER], [ANSWER]), group("q1", [ANSWER])]
        found = compare.take(groups)
        return found, [t.comparison_rewards for g in groups for t in g.trajectories]

    found, paid = again()
    assert (found["same"], found["discriminator_accuracy"], found["not_found"]) == (1, 0, 1)  # it knew nothing
    assert paid[0][1] < 0  # it learns before it pays
    found, paid = again()
    assert paid[0][0] == 0.0 and paid[2] == [0.0]  # as the buffer does; nothing to compare with
    assert -1.0 <= paid[0][1] < -0.1 and paid[1][0] < -0.1  # weight 0.5 of at most 2
    assert found["discriminator_accuracy"] == 1.0 and found["reward"] < 0
    for _ in range(20):
        found, paid = again()
    assert paid[1] == [-1.0]


def test_a_buffer_that_does_not_answer_costs_the_comparison_alone(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Buffer()
    compare, groups = comparison("inverse", buffer), [group("q0", [CALL, ANSWER])]
    buffer.silent = True
    with caplog.at_level(logging.WARNING):
        found = [compare.take(groups) for _ in range(2)][-1]
    assert (found["steps"], found["unanswered"], found["not_found"]) == (2, 2, 0)
    assert groups[0].trajectories[0].comparison_rewards == [0.0, 0.0]
    assert caplog.text.count("does not answer") == 1  # said once, until it answers again
    buffer.silent = False
    assert compare.take(groups)["unanswered"] == 0


def test_the_discriminator_goes_on_from_a_checkpoint_of_the_same_embedder(caplog: pytest.LogCaptureFixture) -> None:
    first, second = comparison("inverse", Buffer()), comparison("inverse", Buffer())
    assert first.get_state() is None
    first.take([group("q0", [ANSWER])])
    state = first.get_state()
    assert state is not None and state.abs().max() > 0
    second.set_state(state)
    both = [[group("q0", [ANSWER])] for _ in range(2)]
    assert first.take(both[0]) == second.take(both[1])
    assert both[0][0].trajectories[0].comparison_rewards == both[1][0].trajectories[0].comparison_rewards != [0.0]
    with caplog.at_level(logging.WARNING):
        second.set_state(torch.zeros(7, dtype=torch.float64))
    assert second.get_state() is None and "another embedder" in caplog.text
    second.set_state(None)
    assert second.get_state() is None

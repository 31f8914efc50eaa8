"""What retrieval did, of trajectories made by hand."""

from __future__ import annotations

import pytest

from rapo_rllib.env_runner.metrics import effect_metrics
from rapo_rllib.objective.retrieval_reward import PAPER
from rapo_rllib.types import FALLBACK, Retrieval, Step, Trajectory


def made(correct: bool, *retrievals: Retrieval, right: bool | None = None, predicted: str = "", **facts: object) -> Trajectory:
    """A trajectory of one call and one answer."""
    steps = [Step(0, 1, tool="python", right=right), Step(1, 2)]
    found = Trajectory("q", [1], correct=correct, predicted=predicted, retrievals=list(retrievals), steps=steps, end="answer")
    found.token_ids, found.entropies = [1, 1], [2.0, 1.0]
    for name, value in facts.items():
        setattr(found, name, value)
    return found


def shown(answer: str = "", source: str = "solver", **facts: bool) -> Retrieval:
    return Retrieval("t", source, 0.9, after_step=0, start=0, stop=0, answer=answer, **facts)


def test_who_was_right_with_it_and_without() -> None:
    trajectories = [
        made(True, shown(), right=True),
        made(False, shown(), right=True),
        made(False, shown(), right=True),
        made(False, shown(), right=False),
        made(True, right=True),
        made(True, right=None),
        made(False, right=False),
        made(True, right=True, steps=[Step(0, 2)]),  # answered at once: it could not have retrieved
        made(False, shown(), right=True, end="error"),  # failed: it says nothing
    ]
    values = effect_metrics(trajectories, PAPER)
    counts = {name: values[name] for name in values if name.endswith("_count")}
    assert counts == {
        "retrieved_count": 4.0,
        "others_count": 3.0,
        "right_step_retrieved_count": 3.0,
        "right_step_others_count": 1.0,
        "answers_count": 0.0,
        "wrong_answers_count": 0.0,
    }
    assert (values["accuracy_retrieved"], values["accuracy_others"]) == pytest.approx((1 / 4, 2 / 3))
    assert (values["accuracy_right_step_retrieved"], values["accuracy_right_step_others"]) == pytest.approx((1 / 3, 1.0))
    assert values["retrieval_reward_baseline"] == pytest.approx(1.523188, abs=1e-6)  # 2 tanh 1


def test_what_was_shown_and_what_was_copied() -> None:
    trajectories = [
        made(True, shown("8", shows_answer=True, own_question=True), predicted="8"),
        made(False, shown("The  Moon"), predicted="the moon"),
        made(False, shown("9"), predicted="8"),
        made(False, shown(own_question=True), predicted=""),  # gives no answer: nothing to copy
        made(False, shown("Think", source=FALLBACK), predicted="Think"),
    ]
    values = effect_metrics(trajectories, PAPER)
    assert (values["own_question"], values["shows_answer"]) == (2 / 4, 1 / 4)
    assert (values["answers_count"], values["answers_copied"]) == (3.0, pytest.approx(2 / 3))
    assert (values["wrong_answers_count"], values["wrong_answers_copied"]) == (2.0, 1 / 2)

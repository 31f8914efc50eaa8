"""``retrieval_quality: counterfactual``: who is shown a step has a twin with the same prefix that is not."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from scripted import CalculatorEnv
from test_loop import QUESTIONS, OneTrace, make_loop

from rapo_rllib.objective.retrieval_reward import retrieval_rewards
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Trajectory

PLAIN_DIFFERENCE = ObjectiveSettings(retrieval_quality="counterfactual", retrieval_timing="none")


def helped_by_the_trace(so_far: str) -> str:
    """Calls once, then answers: right if it has been shown something."""
    asked = so_far.rsplit("What is ", 1)[1]
    number = int(asked.split(" ")[0])
    if "<result>" not in asked:
        return f"<python>{number} + 1</python>"
    return f"<answer>{number + 1 if '<retrieve>' in asked else 'no idea'}</answer>"


def twins_loop(source: Any = None, script: Any = helped_by_the_trace, **settings: Any) -> RolloutLoop:
    defaults = {"group_size": 8, "num_hybrid": 4, "retrieval_quality": "counterfactual"}
    return make_loop(script, source or OneTrace(), **{**defaults, **settings})


def shown(trajectories: list[Trajectory]) -> list[Trajectory]:
    return [t for t in trajectories if t.retrievals]


def test_every_trajectory_that_is_shown_a_step_has_a_twin_and_the_budget_is_the_same() -> None:
    for group in twins_loop().run(QUESTIONS, retrieval_prob=1.0):
        members = group.trajectories
        assert (len(members), sum(t.hybrid for t in members), len(shown(members))) == (8, 4, 4)
        twins = [t for t in members if len(t.segments) == 2]
        assert len(twins) == 4 and not any(t.hybrid or t.retrievals for t in twins)
        for twin in twins:
            (_, origin), (start, own) = twin.segments
            other = members[origin]
            assert members[own] is twin and start == other.retrievals[0].start
            assert twin.token_ids[:start] == other.token_ids[:start] and "<retrieve>" not in twin.text
            assert (other.retrievals[0].unshown, other.reward, twin.reward) == (0.0, 1.0, 0.0)
            ((_, z),) = retrieval_rewards(other, PLAIN_DIFFERENCE)
            assert z == 1.0
            ((_, timed),) = retrieval_rewards(other, ObjectiveSettings(retrieval_quality="counterfactual"))
            assert timed == 1.0  # the entropy before it is 1 nat


def test_a_step_that_changes_nothing_is_worth_nothing() -> None:
    def solved_anyway(so_far: str) -> str:
        return helped_by_the_trace(so_far).replace("no idea", str(int(so_far.rsplit("What is ", 1)[1].split(" ")[0]) + 1))

    (group,) = twins_loop(script=solved_anyway).run(QUESTIONS[:1], retrieval_prob=1.0)
    assert [retrieval_rewards(t, PLAIN_DIFFERENCE)[0][1] for t in shown(group.trajectories)] == [0.0] * 4


def test_who_retrieves_nothing_has_no_twin_and_fresh_trajectories_take_the_places() -> None:
    (group,) = (loop := twins_loop()).run(QUESTIONS[:1], retrieval_prob=0.0)
    assert (len(group.trajectories), sum(t.hybrid for t in group.trajectories)) == (8, 4)
    assert {len(t.segments) for t in group.trajectories} == {1} and loop.stats.refilled == 4


def test_only_the_first_of_several_retrievals_has_a_twin() -> None:
    def three_calls(so_far: str) -> str:
        asked = so_far.rsplit("What is ", 1)[1]
        return "<python>1</python>" if asked.count("<result>") < 3 else helped_by_the_trace(so_far)

    (group,) = twins_loop(script=three_calls).run(QUESTIONS[:1], retrieval_prob=1.0)
    for trajectory in shown(group.trajectories):
        assert [retrieval.unshown for retrieval in trajectory.retrievals] == [0.0, None, None]
        assert len(retrieval_rewards(trajectory, PLAIN_DIFFERENCE)) == 1


def test_there_are_no_twins_where_nobody_asks_for_them() -> None:
    for loop, greedy in ((twins_loop(retrieval_quality="fall"), False), (twins_loop(), True)):
        (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0, greedy=greedy)
        assert {len(t.segments) for t in group.trajectories} == {1}


def test_more_hybrid_trajectories_than_places_for_twins() -> None:
    (group,) = twins_loop(group_size=6).run(QUESTIONS[:1], retrieval_prob=1.0)
    known = [t.retrievals[0].unshown for t in shown(group.trajectories)]
    assert len(group.trajectories) == 6 and sorted(map(str, known)) == ["0.0", "0.0", "None", "None"]


def test_a_twin_whose_environment_fails_says_nothing() -> None:
    class FailsUnaided(CalculatorEnv):
        def step(self, action: str) -> Any:
            if "no idea" in action:
                raise gymnasium.error.Error("broken")
            return super().step(action)

    loop = make_loop(
        *(helped_by_the_trace, OneTrace(), FailsUnaided),
        **{"group_size": 8, "num_hybrid": 4, "retrieval_quality": "counterfactual", "env_retries": 0},
    )
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert sum(t.failed for t in group.trajectories) == 4
    assert [t.retrievals[0].unshown for t in shown(group.trajectories)] == [None] * 4
    assert [retrieval_rewards(t, PLAIN_DIFFERENCE) for t in shown(group.trajectories)] == [[]] * 4


def test_a_step_that_does_not_fit_has_no_twin() -> None:
    loop = twins_loop(max_response_tokens=90)  # the prompt's call and result are 45, the trace and its sentence more
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert loop.stats.retrieval_skipped == 4 and {len(t.segments) for t in group.trajectories} == {1}
    assert len(group.trajectories) == 8


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"branching": {}}, "branching: branches and twins"),
        ({"num_hybrid": 16}, "num_hybrid = 16 and group_size = 16.*at most 8"),
        ({"retrieval_baseline": "on_policy"}, "retrieval_baseline = 'on_policy'"),
    ],
)
def test_what_does_not_go_together(keys: dict[str, Any], message: str) -> None:
    from rapo_rllib import RAPOConfig

    config = RAPOConfig().environment("rapo/word_problems").training(retrieval_quality="counterfactual", **keys)
    with pytest.raises(ValueError, match=f"retrieval_quality = 'counterfactual' with.*{message}"):
        config.validate()

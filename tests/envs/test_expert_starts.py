"""Which groups begin behind an expert's steps, and how many of them."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from dataclasses import replace

import pytest

from rapo_rllib.batching.off_policy import OffPolicyMixing
from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.envs.expert_starts import (
    ExpertRows,
    ExpertStarts,
    GuidedQuestions,
    signal_chance,
    spread,
    success_rate,
)
from rapo_rllib.types import ExpertTrajectory, Question, Trajectory, TrajectoryGroup

STEPS = ("<python>1</python>", "<python>2</python>", "<python>3</python>", "<answer>2</answer>")


def question(number: int) -> Question:
    return Question(f"q{number}", f"Question {number}?", "2")


def starts(share: float = 1.0, known: int = 10, seed: int = 0) -> ExpertStarts:
    """An expert who has solved the first ``known`` questions, failed at them before, and again in more steps."""
    failed = [ExpertTrajectory(question(n), ("<answer>0</answer>",), 0.0, "x") for n in range(known)]
    solved = [ExpertTrajectory(question(n), STEPS, 1.0, "x") for n in range(known)]
    again = [ExpertTrajectory(question(n), (*STEPS, *STEPS), 1.0, "x") for n in range(known)]
    return ExpertStarts([*failed, *solved, *again], share, group_size=8, seed=seed)


def group(of: Question, right: int, size: int = 8, failed: int = 0, refused: bool = False) -> TrajectoryGroup:
    made = [Trajectory(of.id, (), correct=n >= size - right, end="answer") for n in range(size)]
    for trajectory in made[:failed]:
        trajectory.end, trajectory.start_refused = "error", refused
    return TrajectoryGroup(of, made)


def begun_with(made: ExpertStarts, left: int) -> Question:
    """A question of which the policy has so many steps left."""
    return next(q for place in range(1000) if len((q := made.begun(place, question(place % 10))).start) == len(STEPS) - left)


def given(made: ExpertStarts, places: int = 3000) -> list[float]:
    """How often 0, 1, 2 steps are given."""
    counts = Counter(len(made.begun(place, question(place % 10)).start) for place in range(places))
    return [counts[steps] / places for steps in range(3)]


@pytest.mark.parametrize(("success", "size", "chance"), [(0.5, 2, 0.5), (0.0, 8, 0.0), (1.0, 8, 0.0), (0.25, 3, 0.5625)])
def test_the_chance_that_outcomes_differ(success: float, size: int, chance: float) -> None:
    assert signal_chance(success, size) == pytest.approx(chance)
    outcomes = list(itertools.product([0, 1], repeat=size))
    weights = [success ** sum(one) * (1 - success) ** (size - sum(one)) for one in outcomes]
    differ = sum(weight for one, weight in zip(outcomes, weights, strict=True) if len(set(one)) > 1)
    assert signal_chance(success, size) == pytest.approx(differ)


def test_a_rate_that_nobody_has_measured_is_a_half() -> None:
    assert success_rate(0, 0) == 0.5 and success_rate(64, 64) == 65 / 66 and success_rate(0, 6) == 1 / 8


@pytest.mark.parametrize("share", [0.0, 0.2, 1 / 3, 0.75, 1.0])
def test_of_any_places_in_a_row_a_share_is_chosen(share: float) -> None:
    chosen = [spread(place) < share for place in range(400)]
    assert all(abs(sum(chosen[first : first + 12]) - 12 * share) < 2 for first in range(380))
    assert [round(spread(place), 2) for place in range(4)] == [0.62, 0.24, 0.85, 0.47]


def test_steps_of_which_nobody_knows_are_left_alike() -> None:
    assert given(starts()) == pytest.approx([1 / 3] * 3, abs=0.04)
    assert {q.start for place in range(50) if (q := starts().begun(place, question(0)))} == {
        (),
        STEPS[:1],
        STEPS[:2],
    }  # never behind all but the last


def test_most_begin_where_outcomes_differ() -> None:
    """The last two steps are always right, the last three in a quarter, all four never."""
    made = starts()
    for left, right in ((2, 8), (3, 2), (4, 0)):
        one = begun_with(made, left)
        for _ in range(8):
            made.learn([group(one, right)])
    weights = [signal_chance(success_rate(8 * right, 64), 8) for right in (0, 2, 8)]
    assert weights == pytest.approx([0.115, 0.908, 0.115], abs=1e-3)
    assert given(made) == pytest.approx([weight / sum(weights) for weight in weights], abs=0.03)


def test_only_the_newest_trajectories_count_and_none_that_failed() -> None:
    made = starts()
    one = begun_with(made, 2)
    for _ in range(20):
        made.learn([group(one, right=0)])
    for _ in range(8):
        values = made.learn([group(one, right=8)])
    assert values["starts/right_of/2"] == 1.0
    assert made.learn([group(one, right=0, size=64, failed=60)])["starts/right_of/2"] == 60 / 64


def test_who_may_retrieve_says_nothing_of_what_the_policy_can() -> None:
    made = starts()
    whole = group(question(0), right=4)
    for trajectory in whole.trajectories[4:]:
        trajectory.hybrid = True
    assert made.learn([whole])["starts/right_of/4"] == 0.0


def test_what_a_group_tells() -> None:
    made = starts()
    values = made.learn([group(begun_with(made, 2), 6), group(begun_with(made, 3), 2), group(question(3), 0)])
    assert values.pop("starts/asked") > 2  # looked for, to find those two
    assert values == {
        "starts/groups": 2.0,
        "starts/given": 1.5,
        "starts/accuracy": 0.5,
        "starts/groups_without": 0.0,
        "starts/refused": 0.0,
        "starts/right_of/2": 0.75,
        "starts/right_of/3": 0.25,
        "starts/right_of/4": 0.0,
    }


def test_a_question_without_a_trajectory_begins_at_its_beginning_and_is_counted() -> None:
    made = starts(known=2)
    asked = [made.begun(n, question(n % 5)) for n in range(50)]
    assert {one.id for one in asked if one.start} == {"q0", "q1"}
    assert made.learn([group(one, right=1) for one in asked])["starts/groups_without"] == 30.0
    assert made.learn([])["starts/groups_without"] == 0


def test_a_question_that_does_not_take_its_steps_is_asked_without_them() -> None:
    made = starts()
    begun = begun_with(made, 2)
    assert made.learn([group(begun, right=0, failed=8)])["starts/refused"] == 0  # a server was down, say
    assert made.learn([group(begun, right=0, failed=8, refused=True)])["starts/refused"] == 1
    number = int(begun.id[1:])
    assert not any(made.begun(place, question(number)).start for place in range(50))
    assert any(made.begun(place, question(number + 1)).start for place in range(50))


def test_the_state_goes_on_where_it_was() -> None:
    made, other = starts(), starts()
    fresh = given(made)
    for _ in range(8):
        made.learn([group(begun_with(made, 2), right=8)])
    made.learn([group(begun_with(made, 3), right=0, failed=8, refused=True)])
    state = pickle.loads(pickle.dumps(made.get_state()))
    other.set_state(state)
    assert given(other) == given(made) != fresh
    other.set_state(None)
    assert given(other) == fresh


def test_the_seed_decides() -> None:
    begun = [[starts(seed=seed).begun(place, question(0)).start for place in range(30)] for seed in (1, 1, 2)]
    assert begun[0] == begun[1] != begun[2]


def test_places_decide_what_begins_where_also_of_those_that_are_asked_again() -> None:
    cursor = QuestionCursor([question(n) for n in range(10)])
    rows = ExpertRows([ExpertTrajectory(question(99), STEPS, 1.0, "x")], 0.25)
    order = GuidedQuestions(cursor, starts(share=0.5), rows)
    taken = order.take_places(40)
    assert [place for place, one in taken if one.expected] == [place for place in range(40) if spread(place) < 0.25]
    inside = [place for place, one in taken if one.start and not one.expected]
    assert inside and all(0.25 <= spread(place) < 0.75 for place in inside)
    order.put_back([1, 2])
    again = order.take_places(3)
    assert [place for place, _ in again] == [1, 2, 40] and again[:2] == taken[1:3]
    plain = GuidedQuestions(QuestionCursor([question(n) for n in range(10)]), None, None)
    assert all(one.is_whole for _, one in plain.take_places(10))


def test_others_do_not_join_a_group_that_begins_behind_steps() -> None:
    store = ReplayStore(4, 100)
    begun = begun_with(starts(), 2)
    success = group(begun, right=8)
    for trajectory in success.trajectories:
        trajectory.append_policy([1], [-1.0], [1.0])
    store.remember([success])
    assert len(store) == 0
    whole = replace(success, question=replace(begun, start=()))
    store.remember([whole])
    mixing = OffPolicyMixing(store, 1)
    assert not mixing.mixed([success])[0].off_policy and len(mixing.mixed([whole])[0].off_policy) == 1

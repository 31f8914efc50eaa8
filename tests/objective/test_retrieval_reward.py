"""Retrieval reward, eq. 5 to 7, on numbers and on trajectories."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.advantages import retrieval_advantages
from rapo_rllib.objective.retrieval_reward import (
    entropy_change,
    measured_retrievals,
    retrieval_quality,
    retrieval_reward,
    retrieval_timing,
    trajectory_retrieval_reward,
    unaided_retrieval_reward,
)
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import RetrievedTrace, StepTrace, Trajectory

ENTROPY = st.floats(0, 12)
TRACE = RetrievedTrace(StepTrace(id="t", question="q", history="", text="x", reward=1.0), similarity=0.9)


def trajectory(*parts: list[float] | str) -> Trajectory:
    """A list: one generated step of these token entropies. "R": two retrieved tokens. "O": two observation tokens."""
    result = Trajectory("q", [1, 2], hybrid=True)
    for part in parts:
        if part == "R":
            result.append_retrieved([9, 9], TRACE)
        elif part == "O":
            result.append_observation([8, 8])
        else:
            result.append_policy([5] * len(part), [-1.0] * len(part), list(part))
    return result


def retrieval_entropies(walked: Trajectory, *settings: ObjectiveSettings) -> list[tuple[float, float]]:
    return [entropies for _, entropies in measured_retrievals(walked, *settings)]


@pytest.mark.parametrize(
    ("before", "after", "change", "quality", "reward"),
    [
        # change = -(after - before) / before; quality = tanh(2 change); reward = quality * before
        (2.0, 1.0, 0.5, 0.761594, 1.523188),  # tanh 1 = 0.761594
        (2.0, 3.0, -0.5, -0.761594, -1.523188),
        (0.5, 0.0, 1.0, 0.964028, 0.482014),  # tanh 2 = 0.964028
        (1.5, 1.5, 0.0, 0.0, 0.0),
        (0.1, 0.4, -3.0, -0.999988, -0.0999988),  # tanh -6 = -0.999988
        (0.0, 0.0, 0.0, 0.0, 0.0),
        (0.0, 3.0, 0.0, 0.0, 0.0),
    ],
)
def test_equations_5_to_7(before: float, after: float, change: float, quality: float, reward: float) -> None:
    assert entropy_change(before, after) == pytest.approx(change, abs=1e-12)
    assert retrieval_quality(before, after) == pytest.approx(quality, abs=1e-6)
    assert retrieval_reward(before, after) == pytest.approx(reward, abs=1e-6)


def test_same_relative_fall_is_worth_more_at_high_entropy() -> None:
    assert retrieval_reward(4.0, 2.0) == pytest.approx(4 * retrieval_reward(1.0, 0.5))


@pytest.mark.parametrize("before", [0.0, -1e-7, 5e-324, 1e-300])
def test_vanishing_entropy_before_gives_vanishing_reward(before: float) -> None:
    assert abs(retrieval_reward(before, 3.0)) <= 1e-300


def test_entropy_below_zero_by_rounding_counts_as_zero() -> None:
    assert entropy_change(-1e-7, 3.0) == retrieval_quality(-1e-7, 3.0) == retrieval_reward(-1e-7, 3.0) == 0.0


@given(ENTROPY, ENTROPY)
def test_reward_is_bounded_by_the_entropy_before_and_positive_only_where_it_fell(before: float, after: float) -> None:
    reward = retrieval_reward(before, after)
    assert abs(reward) <= before
    if before > 1e-6 and abs(after - before) > 1e-9:
        assert (reward > 0) == (after < before)


@given(ENTROPY, ENTROPY, ENTROPY)
def test_reward_falls_with_the_entropy_after(before: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert retrieval_reward(before, low) >= retrieval_reward(before, high)


def test_entropies_are_those_of_the_steps_around_the_retrieval() -> None:
    # step means 2, 0.5, 1; observation and retrieved tokens (stored as 0.0) must not pull them down
    walked = trajectory([1.0, 3.0], "O", "R", [0.5], "O", [0.8, 1.2], "R")
    assert retrieval_entropies(walked) == [(2.0, 0.5)]


def test_observation_between_step_and_retrieval_changes_nothing() -> None:
    assert retrieval_entropies(trajectory([2.0], "R", [1.0])) == retrieval_entropies(trajectory([2.0], "O", "R", [1.0]))


def test_trajectory_reward_is_the_mean_over_retrievals() -> None:
    # (2 -> 1): 1.523188; (1 -> 1.5): change -0.5, tanh -1 * 1 = -0.761594; mean 0.380797
    walked = trajectory([2.0], "O", "R", [1.0], "O", "R", [1.5])
    assert trajectory_retrieval_reward(walked) == pytest.approx(0.380797, abs=1e-6)


@pytest.mark.parametrize(
    "parts",
    [
        ([2.0], "O", "R", [1.0], "O", "R"),  # budget ran out after the second retrieval
        ([2.0], "O", "R", [1.0], "O", "R", []),  # the engine gave no token: no generated step
        ("R", [2.0], "O", "R", [1.0]),  # nothing was generated before the first
        ([], "R", [2.0], "O", "R", [1.0]),
    ],
)
def test_retrieval_without_generated_step_on_both_sides_is_left_out(parts: tuple) -> None:
    walked = trajectory(*parts)
    assert retrieval_entropies(walked) == [(2.0, 1.0)]
    assert trajectory_retrieval_reward(walked) == pytest.approx(1.523188, abs=1e-6)


@pytest.mark.parametrize("parts", [(), ([2.0],), ([2.0], "O", [1.0]), ([2.0], "O", "R"), ([0.0, 0.0], "R", [3.0])])
def test_trajectory_without_rewarded_retrieval_has_reward_zero(parts: tuple) -> None:
    assert trajectory_retrieval_reward(trajectory(*parts)) == 0.0


@given(st.lists(st.lists(ENTROPY, min_size=1, max_size=4), min_size=2, max_size=6))
def test_trajectory_reward_is_finite_and_bounded(steps: list[list[float]]) -> None:
    parts = [part for step in steps for part in (step, "R")]
    walked = trajectory(*parts)
    assert len(retrieval_entropies(walked)) == len(steps) - 1  # none for the last
    reward = trajectory_retrieval_reward(walked)
    assert math.isfinite(reward)
    assert abs(reward) <= 12


@pytest.mark.parametrize(
    ("quality", "timing", "fell", "rose"),
    [
        # from 2 to 1: tanh 1 = 0.761594; from 2 to 3: tanh -1; 1 / 2 at low entropy
        ("fall", "high_entropy", 1.523188, -1.523188),
        ("rise", "high_entropy", -1.523188, 1.523188),
        ("none", "high_entropy", 2.0, 2.0),
        ("fall", "low_entropy", 0.380797, -0.380797),
        ("fall", "none", 0.761594, -0.761594),
        ("none", "none", 1.0, 1.0),
        ("rise", "low_entropy", -0.380797, 0.380797),
    ],
)
def test_rewards_of_the_ablations(quality: str, timing: str, fell: float, rose: float) -> None:
    assert retrieval_reward(2.0, 1.0, quality, timing) == pytest.approx(fell, abs=1e-6)
    assert retrieval_reward(2.0, 3.0, quality, timing) == pytest.approx(rose, abs=1e-6)
    settings = ObjectiveSettings(retrieval_quality=quality, retrieval_timing=timing)
    assert trajectory_retrieval_reward(trajectory([2.0], "R", [1.0]), settings) == pytest.approx(fell, abs=1e-6)


@given(ENTROPY, ENTROPY)
def test_low_entropy_weighs_certainty_more_and_is_bounded(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < retrieval_timing(high, "low_entropy") <= retrieval_timing(low, "low_entropy") <= 1e6


@pytest.mark.parametrize(
    ("before", "after", "timing", "reward"),
    [
        # 1 / H in place of H in eq. 7, while eq. 5 and 6 keep H: tanh(2 * 0.5) * 2; tanh(-2 * 0.25) / 4
        (0.5, 0.25, 2.0, 1.523188),
        (4.0, 5.0, 0.25, -0.115529),
        (1e-5, 0.0, 1e5, 96402.8),  # tanh 2 = 0.964028
        (0.0, 3.0, 1e6, 0.0),  # without entropy before there is no change, whatever came
    ],
)
def test_reward_at_low_entropy_is_the_papers(before: float, after: float, timing: float, reward: float) -> None:
    assert retrieval_timing(before, "low_entropy") == pytest.approx(timing)
    assert retrieval_reward(before, after, timing="low_entropy") == pytest.approx(reward, rel=1e-5)
    assert retrieval_reward(before, after, "none", "low_entropy") == pytest.approx(timing)


def test_entropy_below_zero_by_rounding_is_timed_as_zero() -> None:
    for kind in ("high_entropy", "low_entropy", "none"):
        assert retrieval_timing(-1e-7, kind) == retrieval_timing(0.0, kind)


@pytest.mark.parametrize("key", ["retrieval_quality", "retrieval_timing"])
def test_unknown_ablations_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} = 'fast': must be one of .*, 'none'"):
        ObjectiveSettings(**{key: "fast"})


def test_step_entropies_as_the_settings_have_them() -> None:
    walked = trajectory([1.0, 3.0, 8.0], "O", "R", [0.5, 0.25, 7.0])
    first_two = ObjectiveSettings(step_entropy_tokens=2, step_entropy_reduction="sum")
    assert retrieval_entropies(walked, first_two) == [(4.0, 0.75)]
    assert retrieval_entropies(walked, ObjectiveSettings(step_entropy_tokens=2)) == [(2.0, 0.375)]
    # change 0.8125, tanh 1.625 = 0.925346, times 4
    assert trajectory_retrieval_reward(walked, first_two) == pytest.approx(3.701385, abs=1e-5)


def test_dividing_entropies_by_log_v_changes_no_advantage() -> None:
    """The released code does; with it Z shrinks by log V, and eq. 9 takes that out again."""
    log_v = math.log(49_152)
    pairs = [(2.0, 1.0), (1.0, 1.5), (3.0, 0.5)]
    assert entropy_change(2.0 / log_v, 1.0 / log_v) == pytest.approx(entropy_change(2.0, 1.0), rel=1e-12)
    plain = [retrieval_reward(*pair) for pair in pairs]
    divided = [retrieval_reward(before / log_v, after / log_v) for before, after in pairs]
    assert divided == pytest.approx([z / log_v for z in plain])
    expected = retrieval_advantages([*plain, 0.0]).tolist()
    assert retrieval_advantages([*divided, 0.0]).tolist() == pytest.approx(expected, abs=1e-4)


def test_the_same_reward_where_nothing_was_retrieved() -> None:
    """Steps of entropies 2, 1 and 3: Z is 2 tanh 1 = 1.523188 and tanh -4 = -0.999329, whose mean is 0.261929."""
    walked = trajectory([2.0, 2.0], "O", [1.0], "O", [2.0, 4.0])
    assert unaided_retrieval_reward(walked) == pytest.approx(0.261929, abs=1e-6)
    assert trajectory_retrieval_reward(walked) == 0.0
    assert unaided_retrieval_reward(trajectory([2.0], "O")) is None
    assert unaided_retrieval_reward(trajectory()) is None
    without_timing = ObjectiveSettings(retrieval_timing="none", step_entropy_tokens=1)
    assert unaided_retrieval_reward(trajectory([2.0], [1.0, 9.0]), without_timing) == pytest.approx(math.tanh(1.0))


def test_the_oracle_knows_what_was_drawn_at_random() -> None:
    settings = ObjectiveSettings(retrieval_quality="oracle", retrieval_timing="none")
    walked = trajectory([2.0], "R", [1.0], "R", [3.0])
    assert trajectory_retrieval_reward(walked, settings) == 1.0
    assert retrieval_quality(2.0, 3.0, "oracle") == retrieval_reward(2.0, 3.0, "oracle", "none") == 1.0
    walked.retrievals[0].noisy = True
    assert trajectory_retrieval_reward(walked, settings) == 0.0
    walked.retrievals[1].noisy = True
    assert trajectory_retrieval_reward(walked, settings) == -1.0
    assert trajectory_retrieval_reward(walked, ObjectiveSettings(retrieval_quality="oracle")) == -(2.0 + 1.0) / 2

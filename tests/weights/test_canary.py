"""The canary's verdict, on numbers."""

from __future__ import annotations

import random

import pytest

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.weights.canary import Canary, CanaryResult, Scores

SCORES = [[-1.0, -2.0], [-0.5, -3.0]]


def canary(tolerance: float | None = None, exact: bool = True) -> Canary:
    made = Canary([[1, 2, 3], [4, 5, 6]], exact)
    made.tolerance = made.tolerance if tolerance is None else tolerance
    return made


def moved(scores: Scores, by: float, noise: float = 0.0, seed: int = 0) -> Scores:
    """Every score higher or lower by ``by``, and by chance up to ``noise``."""
    generator = random.Random(seed)
    signs = random.Random(1)
    return [[s + by * signs.choice((-1, 1)) + noise * generator.uniform(-1, 1) for s in row] for row in scores]


def long_scores(count: int = 60) -> Scores:
    generator = random.Random(2)
    return [[-5 * generator.random() for _ in range(count)] for _ in range(2)]


def test_mean_and_largest_difference() -> None:
    # |0.1|, |0|, |0.3|, |0| -> mean 0.1, max 0.3
    result = canary(0.11).check("a", SCORES, [[-1.1, -2.0], [-0.2, -3.0]])
    assert (result.mean, result.largest) == pytest.approx((0.1, 0.3))
    assert not result.conclusive  # it has nothing that it moved from


@pytest.mark.parametrize("wrong", [-1.5, float("nan")])
def test_other_scores_are_caught(wrong: float) -> None:
    with pytest.raises(WeightSyncError, match="stale or partial weights"):
        canary(0.1).check("a", [[-1.0]], [[wrong]])


def test_a_missing_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        canary().check("a", SCORES, SCORES[:1])


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 0.01), (False, 0.1)])
def test_the_tolerance_follows_the_precision(exact: bool, tolerance: float) -> None:
    assert canary(None, exact).tolerance == tolerance
    canary(None, exact).check("a", [[-1.0]], [[-1 - 0.9 * tolerance]])
    with pytest.raises(WeightSyncError, match=f"where {tolerance} is allowed"):
        canary(None, exact).check("a", [[-1.0]], [[-1 - 1.1 * tolerance]])


@pytest.mark.parametrize(
    ("exact", "noise", "step", "clear"),
    [(True, 1e-5, 1e-4, True), (True, 1e-5, 1e-6, False), (False, 0.02, 0.3, True), (False, 0.02, 0.001, False)],
)
def test_an_engine_that_follows_passes(exact: bool, noise: float, step: float, clear: bool) -> None:
    one, learner = canary(None, exact), long_scores()
    one.check("a", learner, moved(learner, 0.0, noise, seed=7))
    for index in range(1, 9):
        learner = moved(learner, step)
        result = one.check("a", learner, moved(learner, 0.0, noise, seed=index))
        assert result.conclusive is clear
        assert result.learner_moved == pytest.approx(step, rel=0.01) and result.engine_missed < 2 * noise


@pytest.mark.parametrize(("share", "caught"), [(0.0, True), (0.3, True), (0.8, True), (0.95, False)])
def test_an_engine_that_moves_by_a_part_only_is_caught(share: float, caught: bool) -> None:
    """Far below the tolerance."""
    one, before = canary(0.1), long_scores()
    one.check("a", before, moved(before, 0.0, 1e-5))
    now, scored = moved(before, 3e-4), moved(before, share * 3e-4, 1e-5)
    if not caught:
        assert one.check("a", now, scored).conclusive
        return
    with pytest.raises(WeightSyncError, match=r"learner moved by 3.00e-04 nats .* missed \d\.\d\de-0[45] of that"):
        one.check("a", now, scored)


@pytest.mark.parametrize(
    ("exact", "apart", "step"),
    [(True, 0.005, 1e-4), (True, 0.005, 4e-6), (False, 0.05, 2e-3), (False, 0.05, 3e-4), (False, 0.0, 2e-3)],
)
def test_scores_that_do_not_change_at_all_are_caught_however_far_the_two_are_apart(
    exact: bool, apart: float, step: float
) -> None:
    one, before = canary(None, exact), long_scores()
    held = moved(before, 0.0, apart)
    one.check("a", before, held)
    assert one.check("a", before, held).learner_moved == 0
    one.check("a", moved(before, step), moved(held, step, apart / 10))  # an engine that moves, within the noise
    one.check("a", before, held)
    with pytest.raises(WeightSyncError, match="stale or partial"):
        one.check("a", moved(before, step), held)


@pytest.mark.parametrize(("exact", "step"), [(True, 2e-6), (False, 1.5e-4)])
def test_moves_too_small_to_tell_add_up_while_an_engine_stands_still(exact: bool, step: float) -> None:
    one, learner = canary(None, exact), long_scores()
    held = moved(learner, 0.0, 0.005)
    one.check("a", learner, held)
    one.check("a", moved(learner, step), held)
    with pytest.raises(WeightSyncError, match="stale or partial"):
        one.check("a", moved(learner, 2 * step), held)


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize(("exact", "noise", "step"), [(True, 1e-5, 2e-5), (False, 0.01, 0.02)])
def test_an_engine_that_jitters_and_stays_behind_is_caught_at_once(
    exact: bool, noise: float, step: float, share: float
) -> None:
    """A move of the noise's size in one token is far above it in 120."""
    one, before = canary(None, exact), long_scores()
    one.check("a", before, moved(before, 0.0, noise))
    with pytest.raises(WeightSyncError, match="stale or partial"):
        one.check("a", moved(before, step), moved(before, share * step, noise, seed=3))


def test_an_engine_that_jitters_and_never_follows_is_caught_when_moves_have_added_up() -> None:
    one, before, checked = canary(None, exact=False), long_scores(), 0
    one.check("a", before, moved(before, 0.0, 0.01))
    with pytest.raises(WeightSyncError, match="stale or partial"):
        for checked in range(1, 20):
            one.check("a", moved(before, 0.002 * checked), moved(before, 0.0, 0.01, seed=checked))
    assert checked <= 4  # 8 x 0.01 / sqrt(3 x 120) nats a token


@pytest.mark.parametrize(("exact", "noise"), [(True, 1e-5), (False, 0.02)])
@pytest.mark.parametrize("step", [0.01, 0.3, 3.0, 30.0])  # of the noise
def test_an_engine_that_follows_is_never_told_off(exact: bool, noise: float, step: float) -> None:
    """200 syncs of a learner that wanders, with new errors of the engine each time."""
    one, learner, generator = canary(1.0, exact), long_scores(), random.Random(5)
    for index in range(200):
        result = one.check("a", learner, [[s + generator.gauss(0, noise) for s in row] for row in learner])
        assert result.engine_missed < 2 * noise and (not index or result.learner_moved > 0)
        learner = [[s + noise * step * generator.gauss(0, 1) for s in row] for row in learner]


def test_an_engine_is_compared_with_its_own_last_confirmed_weights() -> None:
    """One was away for a version; the other was restarted, and has nothing to compare with; a failure is no confirmation."""
    one, first = canary(0.1), long_scores()
    second, third = moved(first, 1e-3), moved(first, 0.004)
    for engine in ("a", "b"):
        one.check(engine, first, first)
    one.check("a", second, second)
    assert one.check("b", third, third).learner_moved == pytest.approx(0.004)
    assert one.check("b after a restart", third, third) == CanaryResult(0.0, 0.0)
    for _ in range(2):
        with pytest.raises(WeightSyncError, match="learner moved by"):
            one.check("a", third, second)
    assert one.check("a", first, first).conclusive  # older weights again

"""When training stops because the buffer does not answer."""

from __future__ import annotations

import pytest

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.retriever import RetrievalFailures
from rapo_rllib.rollout.stats import RolloutStats


def runner(queries: int, failures: int) -> RolloutStats:
    return RolloutStats(retrieval_queries=queries, retrieval_failures=failures)


def test_too_large_a_share_over_a_whole_evaluation_and_all_runners_is_an_error() -> None:
    counted = RetrievalFailures("http://host:19530", patience_s=None)
    counted.add([runner(10, 9), runner(9, 9)])  # too few to tell
    counted = RetrievalFailures("http://host:19530", patience_s=None)
    counted.add([runner(30, 10), runner(30, 20)])  # half is not above half
    counted.add([runner(10, 3), runner(3, 3)])
    with pytest.raises(RetrievalError, match=r"38 of 75 retrievals failed, more than 50%: .*'http://host:19530' answers, then"):
        counted.add([runner(2, 2)])


class Minutes:
    """A training of one rollout a minute, with so many of 40 retrievals that fail in each."""

    def __init__(self) -> None:
        self.now = 0
        self.counted = RetrievalFailures("http://host:19530", clock=lambda: 60.0 * self.now)

    def run(self, minutes: int, failures: int) -> None:
        for _ in range(minutes):
            self.now += 1
            self.counted.add([runner(20, failures // 2), runner(20, failures - failures // 2)])


@pytest.mark.parametrize("before", [0, 1, 60])
def test_a_server_that_is_gone_for_five_minutes_costs_no_training(before: int) -> None:
    training = Minutes()
    for _ in range(4):
        training.run(before, failures=0)
        training.run(5, failures=40)
        training.run(12, failures=0)


@pytest.mark.parametrize(("before", "failures"), [(0, 40), (60, 40), (60, 30), (0, 21)])
def test_one_that_stays_away_or_fails_too_often_ends_the_training(before: int, failures: int) -> None:
    training = Minutes()
    training.run(before, failures=0)
    training.run(15, failures)
    for _ in range(2):
        with pytest.raises(RetrievalError, match=r"retrievals failed, more than 50%"):
            training.run(1, failures)


def test_a_training_goes_on_once_the_server_answers_again_however_long_its_rollouts_and_few_its_queries() -> None:
    training = Minutes()
    training.run(15, failures=40)
    training.run(1, failures=20)  # half is not above half
    training.run(15, failures=40)
    times = iter(range(0, 10**6, 1200))
    slow = RetrievalFailures("http://host:19530", clock=lambda: float(next(times)))
    for queries, failures in ((100, 0), (100, 100), (90, 0), (100, 100), (0, 0), (1, 0), (9, 9), (9, 9)):
        slow.add([runner(queries, failures)])  # too few to tell
    with pytest.raises(RetrievalError, match="27 of 27"):
        slow.add([runner(9, 9)])

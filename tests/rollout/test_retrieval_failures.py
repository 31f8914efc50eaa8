"""When training stops because the buffer does not answer."""

from __future__ import annotations

import pytest

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.retrieval_failures import RetrievalFailures
from rapo_rllib.rollout.stats import RolloutStats


def runner(queries: int, failures: int) -> RolloutStats:
    return RolloutStats(retrieval_queries=queries, retrieval_failures=failures)


def test_too_large_a_share_over_the_whole_training_and_all_runners_is_an_error() -> None:
    counted = RetrievalFailures("http://host:19530")
    counted.add([runner(10, 9), runner(9, 9)])  # too few to tell
    counted = RetrievalFailures("http://host:19530")
    counted.add([runner(30, 10), runner(30, 20)])  # half is not above half
    counted.add([runner(10, 3), runner(3, 3)])
    with pytest.raises(RetrievalError, match=r"38 of 75 retrievals failed, more than 50%: .*'http://host:19530' answers, then"):
        counted.add([runner(2, 2)])

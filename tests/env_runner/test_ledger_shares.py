"""Which engine gets how many of the next questions."""

from __future__ import annotations

import pytest

from rapo_rllib.env_runner.stream.ledger import shares


@pytest.mark.parametrize(
    ("room", "requests", "expected"),
    [
        (3, {1: 0, 2: 6}, {1: 2, 2: 1}),  # 0, 4, 8 and 6, 10
        (9, {1: 0, 2: 0}, {1: 2, 2: 2}),  # both are full then; five wait
        (1, {1: 0, 2: 0}, {1: 1, 2: 0}),
        (4, {1: 8, 2: 7}, {1: 0, 2: 1}),
        (4, {}, {}),
        (0, {1: 0}, {1: 0}),
    ],
)
def test_the_engine_with_the_fewest_requests_comes_first(room: int, requests: dict[int, int], expected: dict[int, int]) -> None:
    assert shares(room, requests, capacity=8, group_size=4) == expected

"""What each source gives."""

import pytest

from rapo_rllib.buffer.importing import quotas


@pytest.mark.parametrize(
    ("available", "weights", "wanted", "expected"),
    [
        ({"a": 5, "b": 7}, {}, None, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, {"a": 9.0}, 12, {"a": 5, "b": 7}),
        ({"a": 100, "b": 100}, {"a": 3.0}, 40, {"a": 30, "b": 10}),
        ({"a": 100, "b": 100, "c": 3}, {"a": 2.0}, 40, {"a": 25, "b": 12, "c": 3}),
        ({"a": 10, "b": 10, "c": 10}, {}, 10, {"a": 4, "b": 3, "c": 3}),
        ({"a": 10, "b": 10}, {"a": 0.0}, 8, {"a": 0, "b": 8}),
        ({"a": 10, "b": 4}, {"a": 0.0}, 8, {"a": 0, "b": 4}),  # weight 0 gives nothing, even if others run out
    ],
)
def test_quotas(available, weights, wanted, expected):
    assert quotas(available, weights, wanted) == expected

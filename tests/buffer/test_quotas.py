"""What each source gives."""

import pytest

from rapo_rllib.buffer.importing import quotas


@pytest.mark.parametrize(
    ("available", "wanted", "expected"),
    [
        ({"a": 5, "b": 7}, None, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, 12, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, 20, {"a": 5, "b": 7}),
        ({"a": 100, "b": 100}, 40, {"a": 20, "b": 20}),
        ({"a": 100, "b": 100, "c": 3}, 40, {"a": 18, "b": 19, "c": 3}),
        ({"a": 10, "b": 10, "c": 10}, 10, {"a": 3, "b": 3, "c": 4}),
    ],
)
def test_quotas(available, wanted, expected):
    assert quotas(available, wanted) == expected

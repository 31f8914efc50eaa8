"""A prefix tree holds every sequence, and every distinct prefix exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_rllib.batching.prefix_tree import Segment, prefix_forest


def shape(segment: Segment) -> tuple:
    return segment.token_ids.tolist(), segment.start, segment.ends, [shape(child) for child in segment.children]


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([[1, 2, 5], [1, 2, 6, 7], [1, 2]], [([1, 2], 0, (2,), [([6, 7], 2, (1,), []), ([5], 2, (0,), [])])]),
        ([[4, 4], [4, 4]], [([4, 4], 0, (0, 1), [])]),
        ([[1], [2, 3]], [([2, 3], 0, (1,), []), ([1], 0, (0,), [])]),
        ([[7], [7, 7], [7, 7, 7]], [([7], 0, (0,), [([7], 1, (1,), [([7], 2, (2,), [])])])]),
        ([[], [3]], [([3], 0, (1,), [])]),
    ],
)
def test_hand_made_trees(sequences: list[list[int]], expected: list[tuple]) -> None:
    assert [shape(root) for root in prefix_forest([np.array(s, dtype=np.int32) for s in sequences])] == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=8))
def test_every_distinct_prefix_is_there_once_and_every_sequence_is_a_path(sequences: list[list[int]]) -> None:
    forest = prefix_forest([np.array(s, dtype=np.int32) for s in sequences])
    prefixes = {tuple(s[:length]) for s in sequences for length in range(1, len(s) + 1)}
    assert sum(root.num_tokens for root in forest) == len(prefixes)
    paths: dict[int, list[int]] = {index: [] for index, s in enumerate(sequences) if s}
    for root in forest:
        for segment in root.walk():
            for index in segment.sequences:
                assert segment.start == len(paths[index])
                paths[index] += segment.token_ids.tolist()
    assert paths == {index: s for index, s in enumerate(sequences) if s}


def test_a_long_chain_of_forks() -> None:
    tokens = np.arange(300, dtype=np.int32)
    (root,) = prefix_forest([tokens[:length] for length in range(1, 301)])
    assert root.num_tokens == 300 and len(list(root.walk())) == 300

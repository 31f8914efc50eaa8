"""Trees of common prefixes of token sequences, so that each shared token is computed once.

    prompt + response of every sample --prefix_forest--> Segment trees --packing.py--> rows

Shared prefixes are found by comparing tokens: the prompt of a group, the steps that a branch took over, a system prompt with
which several groups begin, and anything that two trajectories happen to generate alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(eq=False)
class Segment:
    """A node of the tree: tokens shared by the same sequences. Its children continue these sequences.

    Example: the sequences ``[1, 2, 5]``, ``[1, 2, 6, 7]`` and ``[1, 2]`` (0, 1 and 2) make the segment ``[1, 2]``, at which
    sequence 2 ends, with the children ``[6, 7]`` and ``[5]``.
    """

    token_ids: np.ndarray  # [T]
    start: int  # position of its first token in each of its sequences
    ends: tuple[int, ...]  # the sequences that end with this segment
    children: tuple[Segment, ...]  # the one with the most tokens below it first

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens in this segment and all segments below it."""
        return len(self.token_ids) + sum(child.num_tokens for child in self.children)

    @cached_property
    def sequences(self) -> tuple[int, ...]:
        """The sequences that contain this segment, in the order in which the tree is walked."""
        return self.ends + tuple(sequence for child in self.children for sequence in child.sequences)

    def walk(self) -> Iterator[Segment]:
        """Yield this segment and all below it, depth first, parents before their children."""
        yield self
        for child in self.children:
            yield from child.walk()


def prefix_forest(sequences: Sequence[np.ndarray]) -> list[Segment]:
    """Build the prefix trees of all sequences ``[T]``, one for each different first token.

    Deterministic: siblings are ordered by the number of tokens below them, then by their first sequence. Empty sequences are in
    no tree.
    """
    return list(_segments(sequences, [index for index in range(len(sequences)) if len(sequences[index])], 0))


def _segments(sequences: Sequence[np.ndarray], members: Sequence[int], start: int) -> tuple[Segment, ...]:
    """Build the segments that begin at position ``start`` of the members, which are equal up to there, and longer."""
    by_token: dict[int, list[int]] = {}
    for index in members:
        by_token.setdefault(int(sequences[index][start]), []).append(index)
    segments = [_segment(sequences, same, start) for same in by_token.values()]
    return tuple(sorted(segments, key=lambda segment: -segment.num_tokens))


def _segment(sequences: Sequence[np.ndarray], members: Sequence[int], start: int) -> Segment:
    first = sequences[members[0]]
    stop = min(common_length(first, sequences[index], start) for index in members)
    ends = tuple(index for index in members if len(sequences[index]) == stop)
    longer = [index for index in members if len(sequences[index]) > stop]
    return Segment(first[start:stop], start, ends, _segments(sequences, longer, stop))


def common_length(a: np.ndarray, b: np.ndarray, start: int = 0) -> int:
    """Count the tokens of the common prefix of two sequences that are known to be equal up to ``start``."""
    stop = min(len(a), len(b))
    different = a[start:stop] != b[start:stop]
    return start + int(different.argmax()) if different.any() else stop

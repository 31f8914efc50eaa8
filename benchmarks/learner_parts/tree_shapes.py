"""Trajectories that share prefixes, by their lengths: a prompt, then levels of branches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TreeShape:
    """One question's trajectories, a tree.

    Example: ``TreeShape(200, ((2, 150), (3, 100)))`` is a prompt of 200 tokens, two ways of 150 to go on, and three of 100 from
    each: six trajectories of 250 response tokens.
    """

    prompt: int  # tokens
    levels: tuple[tuple[int, int], ...]  # branches of each segment above, and tokens of each

    def shrunk(self, divisor: int) -> TreeShape:
        """Shorten all branches by a factor."""
        return TreeShape(self.prompt // divisor, tuple((count, tokens // divisor) for count, tokens in self.levels))


TREES = {
    "arpo_tree": TreeShape(200, ((2, 150), (2, 150), (2, 150))),
    "tau2_prefix": TreeShape(4096, ((16, 300),)),
}

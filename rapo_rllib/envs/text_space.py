"""The space of observations and actions of text environments."""

from __future__ import annotations

import string
from typing import Any

import gymnasium


class AnyText(gymnasium.spaces.Text):
    """All strings up to a length. ``gymnasium.spaces.Text`` would have to list every character that a question may hold.

    Samples are made of printable ASCII characters.
    """

    def __init__(self, max_length: int = 1_000_000) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.max_length == self.max_length

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

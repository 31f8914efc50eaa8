"""The text space that RLlib is told about; it only refuses None, and never checks what is in it."""

from __future__ import annotations

import string

import gymnasium

MAX_LENGTH = 1_000_000


def text_space() -> gymnasium.spaces.Text:
    """Any printable text."""
    return gymnasium.spaces.Text(max_length=MAX_LENGTH, min_length=0, charset=string.printable)

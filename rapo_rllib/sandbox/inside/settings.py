"""The settings of a program of the sandbox, as JSON on its stdin. A command line is short, and code could read it."""

from __future__ import annotations

import json
import os
from typing import Any


def take() -> dict[str, Any]:
    """The settings of this program, whose stdin is empty from then on."""
    with open(0, encoding="utf-8", closefd=False) as reader:
        settings: dict[str, Any] = json.load(reader)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return settings

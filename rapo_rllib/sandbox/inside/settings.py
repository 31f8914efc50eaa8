"""Hand a program of the sandbox its settings, as JSON on its stdin. A command line is short, and code could read it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any


def give(settings: Mapping[str, Any]) -> int:
    """Settings as a file to be the stdin of a program; the caller closes it."""
    file = os.memfd_create("settings")
    with open(file, "w", encoding="utf-8", closefd=False) as writer:
        json.dump(settings, writer)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def take() -> dict[str, Any]:
    """The settings of this program, whose stdin is empty from then on."""
    with open(0, encoding="utf-8", closefd=False) as reader:
        settings: dict[str, Any] = json.load(reader)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return settings

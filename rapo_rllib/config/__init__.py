"""What a job's keys mean before anything is built: presets, checks, and the frozen settings of the layers below."""

from __future__ import annotations

from typing import Any

_HOMES = {"RAPOConfig": "rapo_rllib.algorithm.config"}


def __getattr__(name: str) -> Any:
    """Load ``RAPOConfig`` when it is first used; it stands above this folder, and checkpoints and programs name it here."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

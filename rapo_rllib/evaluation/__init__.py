"""Held-out questions while training, and models on benchmarks."""

from __future__ import annotations

from typing import Any

_HOMES = {"evaluate_on_env_runners": "rapo_rllib.evaluation.held_out"}


def __getattr__(name: str) -> Any:
    """Load the evaluation function when it is first used; checkpoints name it here."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

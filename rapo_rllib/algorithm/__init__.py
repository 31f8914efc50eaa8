"""The training step: sample groups, move the policy, confirm the new weights; and the config that describes it."""

from __future__ import annotations

from typing import Any

_HOMES = {"RAPO": "rapo_rllib.algorithm.algorithm", "RAPOConfig": "rapo_rllib.algorithm.config"}


def __getattr__(name: str) -> Any:
    """Load the algorithm and its config when they are first used; checkpoints name them here."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

"""Rollouts as RLlib has them: the env runner, questions to several of them, and what a rollout reports."""

from __future__ import annotations

from typing import Any

_HOMES = {"RAPOEnvRunner": "rapo_rllib.env_runner.env_runner"}


def __getattr__(name: str) -> Any:
    """Load the env runner when it is first used; checkpoints name it here."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

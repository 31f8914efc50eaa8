"""RAPO (Retrieval-Augmented Policy Optimization, arXiv 2603.03078) for Ray RLlib.

``import rapo_rllib`` registers the algorithm ``RAPO`` and the environments ``rapo/...``; it loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rapo_rllib.registration import register

if TYPE_CHECKING:
    from rapo_rllib.algorithm.algorithm import RAPO
    from rapo_rllib.algorithm.config import RAPOConfig

__version__ = "0.1.0"
__all__ = ["RAPO", "RAPOConfig", "__version__"]

_HOMES = {"RAPO": "rapo_rllib.algorithm.algorithm", "RAPOConfig": "rapo_rllib.algorithm.config"}


def __getattr__(name: str) -> Any:
    """Import ``RAPO`` or ``RAPOConfig`` at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


register()

"""RAPO (Retrieval-Augmented Policy Optimization, arXiv 2603.03078) for Ray RLlib.

``import rapo_rllib`` registers the algorithm ``RAPO`` and the environments ``rapo/...``; it loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapo_rllib.lazy import lazy_names
from rapo_rllib.registration import register

if TYPE_CHECKING:
    from rapo_rllib.algorithm.algorithm import RAPO
    from rapo_rllib.algorithm.config import RAPOConfig

__version__ = "0.1.0"
__all__ = ["RAPO", "RAPOConfig", "__version__"]

__getattr__ = lazy_names(__name__, {"RAPO": "rapo_rllib.algorithm.algorithm", "RAPOConfig": "rapo_rllib.algorithm.config"})

register()

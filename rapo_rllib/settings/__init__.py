"""Frozen settings with every key of a job, each declared once. The layers below RLlib are given these.

``RAPOConfig`` has the keys as flat attributes, as RLlib's configs do, and makes a :class:`Settings` of them. The layers below
never see an ``AlgorithmConfig``.
"""

from rapo_rllib.settings.buffer import BufferSettings, TraceFilter
from rapo_rllib.settings.job import (
    FLAT,
    NESTED,
    OffPolicySettings,
    RLlibSettings,
    RunSettings,
    Settings,
    UpdateSettings,
)
from rapo_rllib.settings.model import ALL_LINEAR, EngineSettings, LoraSettings, ModelSettings, WarmStartSettings
from rapo_rllib.settings.objective import ObjectiveSettings
from rapo_rllib.settings.rollout import BranchingSettings, ProtocolSettings, RolloutSettings

__all__ = [
    "ALL_LINEAR",
    "FLAT",
    "NESTED",
    "BranchingSettings",
    "BufferSettings",
    "EngineSettings",
    "LoraSettings",
    "ModelSettings",
    "ObjectiveSettings",
    "OffPolicySettings",
    "ProtocolSettings",
    "RLlibSettings",
    "RolloutSettings",
    "RunSettings",
    "Settings",
    "TraceFilter",
    "UpdateSettings",
    "WarmStartSettings",
]

"""What the layers below RLlib are told: frozen settings made of a ``RAPOConfig``'s flat keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from rapo_rllib.config.checks import refuse_token, settings_from
from rapo_rllib.config.presets import merge_over_preset
from rapo_rllib.models.hardware import resolved_dtype
from rapo_rllib.settings import (
    BranchingSettings,
    BufferSettings,
    EngineSettings,
    LoraSettings,
    ModelSettings,
    ObjectiveSettings,
    ProtocolSettings,
    RolloutSettings,
    TraceFilter,
    WarmStartSettings,
)

_OBJECTIVE_KEYS = tuple(ObjectiveSettings.__dataclass_fields__)
_ROLLOUT_KEYS = tuple(RolloutSettings.__dataclass_fields__)


class SettingsViews:
    """The part of ``RAPOConfig`` that turns its attributes into settings."""

    # attributes of RAPOConfig and AlgorithmConfig that are read here
    language_model: dict[str, Any]
    engine: dict[str, Any]
    protocol: dict[str, Any]
    step_trace_buffer: dict[str, Any]
    branching: Any
    warm_start: Any
    _started_from: str | None
    num_hybrid: int
    retrieval_prob: Any
    retrieval_level: str
    buffer_growth: str
    old_logprobs: str
    num_minibatches: int
    one_step_off: bool
    num_gpus_per_learner: Any
    num_gpus_per_env_runner: Any

    @property
    def model_settings(self) -> ModelSettings:
        """The model as the learner loads it, ``auto`` resolved."""
        values = dict(self.language_model)
        if self._started_from is not None:
            values["name_or_path"] = self._started_from
        if values.get("lora") is not None:
            values["lora"] = _lora_settings(values["lora"])
        settings = settings_from(ModelSettings, values, "model")
        auto = "bfloat16" if self.num_gpus_per_learner else None
        autocast = (auto or resolved_dtype("auto")) if settings.autocast_dtype == "auto" else settings.autocast_dtype
        return replace(settings, autocast_dtype=autocast)

    @property
    def engine_settings(self) -> EngineSettings:
        """The engine of one env runner, ``auto`` resolved."""
        settings = settings_from(EngineSettings, self.engine, "engine")
        auto = "bfloat16" if self.num_gpus_per_env_runner else None
        dtype = (auto or resolved_dtype("auto")) if settings.dtype == "auto" else settings.dtype
        return EngineSettings(**{**asdict(settings), "dtype": dtype})

    @property
    def protocol_settings(self) -> ProtocolSettings:
        """The text protocol."""
        values = dict(self.protocol)
        if "examples" in values:
            values["examples"] = _examples(values["examples"])
        return settings_from(ProtocolSettings, values, "protocol")

    @property
    def buffer_settings(self) -> BufferSettings:
        """The Step-Trace Buffer; its level is ``retrieval_level``, its growth ``buffer_growth``."""
        for key, name in (("level", "retrieval_level"), ("growth", "buffer_growth")):
            if key in self.step_trace_buffer:
                raise ValueError(f"step_trace_buffer.{key} = {self.step_trace_buffer[key]!r}: set {name} instead")
        refuse_token(self.step_trace_buffer)
        own = {"level": self.retrieval_level, "growth": self.buffer_growth}
        values = {**merge_over_preset(self, "step_trace_buffer", self.step_trace_buffer), **own}
        if "filter" in values and not isinstance(values["filter"], TraceFilter):
            values["filter"] = _trace_filter(values["filter"])
        return settings_from(BufferSettings, values, "step_trace_buffer")

    @property
    def warm_start_settings(self) -> WarmStartSettings | None:
        """The warm start; None: there is none."""
        if self.warm_start is None:
            return None
        settings: WarmStartSettings = settings_from(WarmStartSettings, self.warm_start, "warm_start")
        return settings

    @property
    def old_policy(self) -> str:
        """Whose logprobs are π_old: ``rollout`` (the engine's) or ``learner``; ``old_logprobs`` with ``auto`` resolved.

        With one minibatch the learner's own come with its first forward pass. With ``one_step_off`` the policy that sampled is
        an update older, so the ratio to it says how far the policy has moved, which the clip is to bound.
        """
        if self.old_logprobs != "auto":
            return self.old_logprobs
        return "learner" if self.num_minibatches == 1 and not self.one_step_off else "rollout"

    @property
    def objective_settings(self) -> ObjectiveSettings:
        """The objective."""
        return ObjectiveSettings(**{key: getattr(self, key) for key in _OBJECTIVE_KEYS})

    @property
    def rollout_settings(self) -> RolloutSettings:
        """Budgets and hybrid policy."""
        values = {key: getattr(self, key) for key in _ROLLOUT_KEYS}
        if self.branching is not None:
            values["branching"] = settings_from(BranchingSettings, self.branching, "branching")
        return RolloutSettings(**values)

    @property
    def uses_retrieval(self) -> bool:
        """Whether any trajectory can ever retrieve."""
        never = self.retrieval_prob == 0 if not isinstance(self.retrieval_prob, (list, tuple)) else False
        return self.num_hybrid > 0 and not never


def _examples(given: Any) -> tuple[tuple[str, str], ...]:
    """``protocol.examples``; YAML's lists become tuples."""
    pairs = given if isinstance(given, list | tuple) else [given]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"protocol.examples = {given!r}: must be a list of [question, response] pairs of texts")
    return tuple((question, response) for question, response in pairs)


def _lora_settings(values: Any) -> LoraSettings:
    """``model.lora``; YAML's list of targets becomes a tuple."""
    if isinstance(values, Mapping) and isinstance(values.get("target_modules"), list):
        values = {**values, "target_modules": tuple(values["target_modules"])}
    settings: LoraSettings = settings_from(LoraSettings, values, "model.lora")
    return settings


def _trace_filter(values: Any) -> TraceFilter:
    """``step_trace_buffer.filter``; YAML's list of sources becomes a tuple."""
    if isinstance(values, Mapping) and isinstance(values.get("sources"), list):
        values = {**values, "sources": tuple(values["sources"])}
    chosen: TraceFilter = settings_from(TraceFilter, values, "step_trace_buffer.filter")
    return chosen

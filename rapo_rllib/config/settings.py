"""From a config's flat keys to the frozen settings that the layers below RLlib are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rapo_rllib.config.presets import merge_over_preset
from rapo_rllib.models.hardware import resolved_dtype
from rapo_rllib.services.credentials import TOKEN_VARIABLE
from rapo_rllib.settings import (
    FLAT,
    BufferSettings,
    EngineSettings,
    ModelSettings,
    ObjectiveSettings,
    OffPolicySettings,
    ProtocolSettings,
    RLlibSettings,
    RolloutSettings,
    RunSettings,
    Settings,
    UpdateSettings,
    WarmStartSettings,
)
from rapo_rllib.settings.knobs import build, knobs
from rapo_rllib.settings.rollout import GPU_TOOL_WORKERS

Flat = TypeVar("Flat")

_SECTIONS: dict[str, type] = {
    "language_model": ModelSettings,
    "engine": EngineSettings,
    "protocol": ProtocolSettings,
    "step_trace_buffer": BufferSettings,
}
GPU_MAX_NUM_SEQS = 256  # sequences at once, where a job does not say: with fewer, a GPU waits for its memory


def default_keys() -> dict[str, Any]:
    """RAPO's own keys and their defaults, as attributes of a ``RAPOConfig``."""
    flat = {name: declared.default for cls in FLAT for name, declared in knobs(cls).items()}
    nested: dict[str, Any] = {"language_model": {}, "engine": {}, "protocol": {}, "step_trace_buffer": {}, "warm_start": None}
    # whose values the flat keys have (not `preset` while a search is to choose it); folder of the model of a warm start
    return {**flat, **nested, "_applied_preset": None, "_started_from": None}


def settings_of(keys: Mapping[str, Any]) -> Settings:
    """The settings of a config, ``auto`` resolved.

    Args:
        keys: attributes of a ``RAPOConfig``: RAPO's own and RLlib's.

    Raises:
        ValueError: naming a key, its value and what it must be.
    """
    for name, cls in _SECTIONS.items():
        if not isinstance(keys[name], Mapping):
            build(cls, keys[name])  # which says so
    rllib = _flat(RLlibSettings, keys)
    return Settings(
        rollout=_rollout(keys),
        objective=_flat(ObjectiveSettings, keys),
        update=_update(keys),
        off_policy=_flat(OffPolicySettings, keys),
        run=_flat(RunSettings, keys),
        rllib=rllib,
        model=_model(keys),
        engine=_engine(keys),
        protocol=protocol_of(keys),
        buffer=_buffer(keys),
        warm_start=None if keys["warm_start"] is None else build(WarmStartSettings, keys["warm_start"]),
    )


def protocol_of(keys: Mapping[str, Any]) -> ProtocolSettings:
    """The text protocol of a config."""
    return build(ProtocolSettings, keys["protocol"])


def refuse_token(step_trace_buffer: Any) -> None:
    """Raise ``ValueError`` if the mapping holds a server's token itself; it is not repeated."""
    if isinstance(step_trace_buffer, Mapping) and step_trace_buffer.get("token"):
        raise ValueError(
            "step_trace_buffer.token (its value is not shown): what stands in a job reaches results, checkpoints and loggers. "
            f"Put it into the environment variable {TOKEN_VARIABLE} on every machine of the run, and take it out of the job"
        )


def _flat(cls: type[Flat], keys: Mapping[str, Any]) -> Flat:
    return build(cls, {name: keys[name] for name in knobs(cls)})


def _model(keys: Mapping[str, Any]) -> ModelSettings:
    started = {} if keys["_started_from"] is None else {"name_or_path": keys["_started_from"]}
    model = build(ModelSettings, {**keys["language_model"], **started})
    return replace(model, autocast_dtype=_dtype(model.autocast_dtype, keys["num_gpus_per_learner"]))


def _engine(keys: Mapping[str, Any]) -> EngineSettings:
    gpus = keys["num_gpus_per_env_runner"]
    engine = build(EngineSettings, {**({"max_num_seqs": GPU_MAX_NUM_SEQS} if gpus else {}), **keys["engine"]})
    return replace(engine, dtype=_dtype(engine.dtype, gpus))


def _rollout(keys: Mapping[str, Any]) -> RolloutSettings:
    rollout = _flat(RolloutSettings, keys)
    if rollout.tool_workers is None and keys["num_gpus_per_env_runner"]:
        return replace(rollout, tool_workers=GPU_TOOL_WORKERS)
    return rollout


def _update(keys: Mapping[str, Any]) -> UpdateSettings:
    update = _flat(UpdateSettings, keys)
    if update.weight_transfer == "auto":
        return replace(update, weight_transfer="nccl" if _has_whole_gpus(keys) else "object_store")
    return update


def _has_whole_gpus(keys: Mapping[str, Any]) -> bool:
    """Whether all engines and learners have processes and whole GPUs of their own, and whole weights travel between them."""
    processes = keys["num_env_runners"] and keys["num_learners"] and not keys["evaluation_num_env_runners"]
    whole = keys["num_gpus_per_env_runner"] >= 1 and keys["num_gpus_per_learner"] >= 1
    return bool(processes and whole and keys["language_model"].get("lora") is None)


def _dtype(asked: Any, gpus: Any) -> Any:
    """``auto`` resolved for where it computes."""
    if asked != "auto":
        return asked
    return "bfloat16" if gpus else resolved_dtype("auto")


def _buffer(keys: Mapping[str, Any]) -> BufferSettings:
    given = keys["step_trace_buffer"]
    for key, name in (("level", "retrieval_level"), ("growth", "buffer_growth")):
        if key in given:
            raise ValueError(f"step_trace_buffer.{key} = {given[key]!r}: set {name} instead")
    refuse_token(given)
    own = {"level": keys["retrieval_level"], "growth": keys["buffer_growth"]}
    return build(BufferSettings, {**merge_over_preset(keys["_applied_preset"], "step_trace_buffer", given), **own})

"""Make the frozen settings for the layers below RLlib from the flat keys of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rapo_rllib.config.presets import merge_over_preset
from rapo_rllib.models.devices import resolved_dtype
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

Section = TypeVar("Section")

GPU_MAX_NUM_SEQS = 256  # sequences at once, unless a job says otherwise: with fewer, a GPU waits for its memory
GPU_LOGITS_CHUNK = 8192  # tokens of a long row: the LM head runs once for one chunk, but twice for each further one


def default_keys() -> dict[str, Any]:
    """List RAPO's own keys with their defaults, as attributes of a ``RAPOConfig``."""
    flat = {name: declared.default for cls in FLAT for name, declared in knobs(cls).items()}
    nested: dict[str, Any] = {"language_model": {}, "engine": {}, "protocol": {}, "step_trace_buffer": {}, "warm_start": None}
    # the preset in the values of the flat keys (None while a search is to choose it); folder of a warm start's model
    return {**flat, **nested, "_applied_preset": None, "_started_from": None}


def settings_of(keys: Mapping[str, Any]) -> Settings:
    """Build the settings of a config, with ``auto`` resolved.

    Args:
        keys: attributes of a ``RAPOConfig``: RAPO's own and RLlib's.

    Raises:
        ValueError: naming a key, its value and what it must be.
    """
    rllib, rollout, update = _flat(RLlibSettings, keys), _flat(RolloutSettings, keys), _flat(UpdateSettings, keys)
    on_gpu = bool(rllib.num_gpus_per_env_runner)
    on_learner = _on_gpu(keys["language_model"], update) if rllib.num_gpus_per_learner else {}
    model = _nested(ModelSettings, keys["language_model"], below=on_learner, above=_started_from(keys))
    engine = _nested(EngineSettings, keys["engine"], below={"max_num_seqs": GPU_MAX_NUM_SEQS} if on_gpu else {})
    if rollout.tool_workers is None and on_gpu:
        rollout = replace(rollout, tool_workers=GPU_TOOL_WORKERS)
    if update.weight_transfer == "auto" and _on_whole_gpus(rllib) and model.lora is None:
        update = replace(update, weight_transfer="nccl")
    return Settings(
        rollout=rollout,
        objective=_flat(ObjectiveSettings, keys),
        update=update,
        off_policy=_flat(OffPolicySettings, keys),
        run=_flat(RunSettings, keys),
        rllib=rllib,
        model=replace(model, autocast_dtype=_dtype(model.autocast_dtype, rllib.num_gpus_per_learner)),
        engine=replace(engine, dtype=_dtype(engine.dtype, on_gpu)),
        protocol=protocol_of(keys),
        buffer=_buffer(keys),
        warm_start=None if keys["warm_start"] is None else build(WarmStartSettings, keys["warm_start"]),
    )


def _on_gpu(given: Any, update: UpdateSettings) -> dict[str, Any]:
    """Choose the model's defaults on a learner's GPU: bfloat16 weights (with float32 masters), and compiled layers if possible.

    If ``autocast_dtype`` asks for other matrix products than bfloat16, the weights are float32.
    """
    asked = given if isinstance(given, Mapping) else {}
    low = asked.get("autocast_dtype", "auto") in ("auto", "bfloat16")
    compiled = asked.get("gradient_checkpointing") != "selective" and update.learner_parallelism != "fsdp"
    return {"dtype": "bfloat16" if low else "float32", "compile": compiled, "logits_chunk_size": GPU_LOGITS_CHUNK}


def protocol_of(keys: Mapping[str, Any]) -> ProtocolSettings:
    """Build the protocol settings of a config."""
    return build(ProtocolSettings, keys["protocol"])


def refuse_token(step_trace_buffer: Any) -> None:
    """Raise ``ValueError`` if the mapping holds a server's token itself; the message does not repeat the token."""
    if isinstance(step_trace_buffer, Mapping) and step_trace_buffer.get("token"):
        raise ValueError(
            "step_trace_buffer.token (its value is not shown): what stands in a job reaches results, checkpoints and loggers. "
            f"Put it into the environment variable {TOKEN_VARIABLE} on every machine of the run, and take it out of the job"
        )


def _flat(cls: type[Section], keys: Mapping[str, Any]) -> Section:
    return build(cls, {name: keys[name] for name in knobs(cls)})


def _nested(cls: type[Section], given: Any, below: Mapping[str, Any] = {}, above: Mapping[str, Any] = {}) -> Section:
    """Build a section from the user's mapping, over the defaults ``below``, and under ``above``, which another key decides."""
    return build(cls, {**below, **given, **above} if isinstance(given, Mapping) else given)


def _started_from(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the model of a warm start, once there is one, as the value that replaces the job's ``name_or_path``."""
    return {} if keys["_started_from"] is None else {"name_or_path": keys["_started_from"]}


def _on_whole_gpus(rllib: RLlibSettings) -> bool:
    """Check whether all engines and learners have processes and whole GPUs of their own."""
    processes = rllib.num_env_runners and rllib.num_learners and not rllib.evaluation_num_env_runners
    return bool(processes and rllib.num_gpus_per_env_runner >= 1 and rllib.num_gpus_per_learner >= 1)


def _dtype(asked: Any, gpus: Any) -> Any:
    """Resolve ``auto`` for the device that computes: a GPU, or this machine."""
    if asked != "auto":
        return asked
    return "bfloat16" if gpus else resolved_dtype("auto")


def _buffer(keys: Mapping[str, Any]) -> BufferSettings:
    given = keys["step_trace_buffer"]
    if not isinstance(given, Mapping):
        return build(BufferSettings, given)  # which refuses it
    for key, name in (("level", "retrieval_level"), ("growth", "buffer_growth")):
        if key in given:
            raise ValueError(f"step_trace_buffer.{key} = {given[key]!r}: set {name} instead")
    refuse_token(given)
    own = {"level": keys["retrieval_level"], "growth": keys["buffer_growth"]}
    return build(BufferSettings, {**merge_over_preset(keys["_applied_preset"], "step_trace_buffer", given), **own})

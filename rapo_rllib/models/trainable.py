"""Refusal of language models that learner and engine compute differently, or whose kind is untested.

A mixture of experts routes tokens by comparing scores, so rounding alone can send a token through different experts in learner
and engine. A small Qwen3-MoE differed by 0.048 nats although every weight had arrived; no tolerance can tell that from a lost
update. With a quantised model, the engine computes with other numbers than the learner.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rapo_rllib.models.loading import load_causal_lm, load_config
from rapo_rllib.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_EXPERTS = re.compile(r"(\w+_)?(num|n)_(\w+_)?experts")  # num_experts, num_local_experts, n_routed_experts, moe_num_experts


def check_trainable(settings: ModelSettings) -> None:
    """Refuse a model that cannot be trained; to find out, the model is built without weights.

    Raises:
        ValueError: it is a mixture of experts, quantised, made for more than text, no language model, or hides its embeddings.
    """
    name = settings.name_or_path
    config = load_config(settings)
    if reason := untrainable(config):
        raise ValueError(f"model.name_or_path: {name!r} {reason}. Name a dense, unquantised model of texts alone")
    try:
        language_model = load_causal_lm(settings, with_weights=False)
    except (ValueError, ImportError) as error:
        raise ValueError(
            f"model.name_or_path: {name!r} is no language model that transformers can build ({str(error).splitlines()[0]}). "
            "Name a model that AutoModelForCausalLM loads"
        ) from error
    embeddings = None
    with suppress(NotImplementedError):  # of transformers, which finds no embeddings in a model of unknown form
        embeddings = language_model.get_input_embeddings()
    if embeddings is None:
        raise ValueError(
            f"model.name_or_path: {name!r} does not tell its input embeddings, which the trial of its attention needs. Add "
            f"get_input_embeddings() to {type(language_model).__name__} in the model's code, or name another model"
        )


def untrainable(config: PretrainedConfig) -> str:
    """Find why a model of this Hugging Face config cannot be trained; "" if it can."""
    counts = {**vars(config), **vars(config.get_text_config())}
    experts = [f"{key} = {value}" for key, value in counts.items() if _counts_experts(key, value)]
    if experts:
        return (
            f"is a mixture of experts ({experts[0]}): learner and engine send tokens to different experts, and what that does "
            "to training is not measured"
        )
    if getattr(config, "quantization_config", None):
        return "is quantised (quantization_config): the engine would compute with other numbers than the learner"
    if config.get_text_config() is not config:
        return f"has parts for more than texts (model_type {config.model_type!r})"
    return ""


def _counts_experts(key: str, value: Any) -> bool:
    return _EXPERTS.fullmatch(key) is not None and isinstance(value, int) and value > 1

"""Refusal of kinds of language models that learner and engine compute differently, or that are untested.

A mixture of experts routes a token by a comparison of scores, so that rounding alone sends tokens of learner and engine through
different experts; a small Qwen3-MoE differed by 0.048 nats with every weight in its place, which no tolerance tells from a lost
update. Of a quantised model the engine computes with other numbers than the learner.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rapo_rllib.models.loading import load_causal_lm, load_config
from rapo_rllib.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_EXPERTS = re.compile(r"(\w+_)?(num|n)_(\w+_)?experts")  # num_experts, num_local_experts, n_routed_experts, moe_num_experts


def check_trainable(settings: ModelSettings) -> None:
    """Build the model without weights, as the learner will build it with them.

    Raises:
        ValueError: it is a mixture of experts, quantised, made for images or sound, or no language model that predicts tokens.
    """
    name = settings.name_or_path
    config = load_config(settings)
    if reason := untrainable(config):
        raise ValueError(f"model.name_or_path: {name!r} {reason}. Name a dense, unquantised model of texts alone")
    try:
        load_causal_lm(replace(settings, dtype="float32"), with_weights=False)  # its own is not of the kind of model
    except (ValueError, ImportError) as error:
        raise ValueError(
            f"model.name_or_path: {name!r} is no language model that transformers can build ({str(error).splitlines()[0]}). "
            "Name a model that AutoModelForCausalLM loads"
        ) from error


def untrainable(config: PretrainedConfig) -> str:
    """Return why a model of this Hugging Face config cannot be trained; "" if it can."""
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

"""No randomness in the learner's passes: the engine samples without dropout, and the ratio compares the two policies.

RLlib's ``forward_train`` switches modules to training mode, which gradient checkpointing needs, and which switches on whatever
is random in a model: GPT-2, OPT and XGLM drop a tenth of their states, XGLM and OPT may skip layers, some routers add noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

RANDOM = ("drop", "jitter")  # in the names of a config: attn_pdrop, hidden_dropout_prob, layerdrop, router_jitter_noise
_CONFIGURED = "configured_dropout"  # attribute of a model: what its config had


def zero_randomness(config: PretrainedConfig) -> dict[str, float]:
    """Set every dropout, layer drop and jitter of a Hugging Face config to 0, those of its parts (``text_config``) included.

    Returns:
        Values before, of all that were not 0, by dotted name.
    """
    before: dict[str, float] = {}
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            before |= {f"{name}.{inner}": number for inner, number in zero_randomness(value).items()}
        elif any(word in name for word in RANDOM) and type(value) in (int, float) and value:
            before[name] = value
            setattr(config, name, 0.0)
    return before


def silence(language_model: Any, before: dict[str, float]) -> None:
    """Set the dropout layers to 0 that a model did not take from its config, and remember what the config had.

    Args:
        language_model: made from a config after :func:`zero_randomness`.
        before: what that returned.
    """
    setattr(language_model, _CONFIGURED, before)
    for module in language_model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0


@contextmanager
def configured_dropout(language_model: Any) -> Iterator[None]:
    """Inside, the model's config has its dropout again, as whoever loads what is saved of it will expect."""
    before: dict[str, float] = getattr(language_model, _CONFIGURED, {})
    _set(language_model.config, before)
    try:
        yield
    finally:
        _set(language_model.config, dict.fromkeys(before, 0.0))


def _set(config: PretrainedConfig, values: dict[str, float]) -> None:
    for dotted, value in values.items():
        *parts, name = dotted.split(".")
        setattr(reduce(getattr, parts, config), name, value)

"""No randomness in the learner's passes: the engine samples without dropout, and the ratio compares the two policies.

RLlib's ``forward_train`` switches modules to training mode, which gradient checkpointing needs, and which switches on whatever
is random in a model: GPT-2, OPT and XGLM drop a tenth of their states, XGLM and OPT may skip layers, some routers add noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

RANDOM = ("drop", "jitter")  # in the names of a config: attn_pdrop, hidden_dropout_prob, layerdrop, router_jitter_noise


def zero_randomness(config: PretrainedConfig) -> None:
    """Set every dropout, layer drop and jitter of a Hugging Face config to 0, those of its parts (``text_config``) included."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            zero_randomness(value)
        elif any(word in name for word in RANDOM) and type(value) in (int, float):
            setattr(config, name, 0.0)


def silence(language_model: torch.nn.Module) -> None:
    """Set the dropout layers to 0 that a model did not take from its config."""
    for module in language_model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0

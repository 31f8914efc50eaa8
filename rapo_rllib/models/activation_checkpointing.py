"""Decoder layers in training: the activations they keep for the backward pass, and their compilation.

    gradient_checkpointing: false        all kept
                            selective    results of matrix products and attention kept, what lies between computed again
                            true         one hidden state per layer kept, everything else computed again

Norms, rotary embeddings and gates hold most of the memory and take little of the time: ``selective`` needs about 40 % of the
memory of ``false`` and hardly more time; ``true`` needs a few per cent of it and a third more time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATEN = torch.ops.aten
KEPT = [
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    torch.ops.higher_order.flex_attention,
    torch.ops.higher_order.inductor_compiled_code,  # what transformers makes of it: alone in a layer it is compiled
]


def decoder_layers(language_model: PreTrainedModel) -> list[torch.nn.Module]:
    """List the modules that the model itself never lets be split; FSDP's classes extend the model's."""
    names = set(language_model._no_split_modules or ())
    return [module for module in language_model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


def enable_checkpointing(language_model: PreTrainedModel, gradient_checkpointing: bool | str) -> None:
    """Set what the model's layers keep."""
    if gradient_checkpointing == "selective":
        from torch._inductor import config

        config.wrap_inductor_compiled_regions = True  # otherwise compiled code is no operation that could be kept
        contexts = partial(create_selective_checkpoint_contexts, KEPT)
        language_model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    elif gradient_checkpointing:
        language_model.gradient_checkpointing_enable({"use_reentrant": False})


def compile_layers(language_model: PreTrainedModel, backend: str = "inductor") -> int:
    """Compile each decoder layer in place, under the names that it has; returns how many there are.

    Norms, rotary embeddings and gates of a layer become a few kernels in place of dozens. Layers are alike, so one is compiled
    and the code serves all; the whole model at once would take as many times longer.

    Args:
        language_model: whose class names its layers (``_no_split_modules``).
        backend: of ``torch.compile``.

    Raises:
        ValueError: it names none.
    """
    layers = decoder_layers(language_model)
    if not layers:
        raise ValueError(
            f"model.compile = True: {type(language_model).__name__} does not name its layers (_no_split_modules); set false"
        )
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
    return len(layers)

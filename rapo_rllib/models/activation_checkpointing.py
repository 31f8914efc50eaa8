"""Decoder layers in training: the activations they keep for the backward pass, and their compilation.

    gradient_checkpointing: false        all are kept
                            selective    results of matrix products and attention are kept, all others computed again
                            true         one hidden state per layer is kept, all others computed again

Norms, rotary embeddings and gates hold most of the memory and take little of the time: ``selective`` needs about 40 % of the
memory of ``false`` and hardly more time; ``true`` needs a few per cent of that memory and a third more time.
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
    torch.ops.higher_order.inductor_compiled_code,  # FlexAttention in transformers: it is compiled even in a layer that is not
]


def decoder_layers(language_model: PreTrainedModel) -> list[torch.nn.Module]:
    """List the decoder layers: modules of a class in ``_no_split_modules``, or of a subclass, as FSDP makes them."""
    names = set(language_model._no_split_modules or ())
    return [module for module in language_model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


def enable_checkpointing(language_model: PreTrainedModel, gradient_checkpointing: bool | str) -> None:
    """Choose which activations the model's layers keep."""
    if gradient_checkpointing == "selective":
        from torch._inductor import config

        config.wrap_inductor_compiled_regions = True  # else results of compiled code cannot be kept
        contexts = partial(create_selective_checkpoint_contexts, KEPT)
        language_model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    elif gradient_checkpointing:
        language_model.gradient_checkpointing_enable({"use_reentrant": False})


def compile_layers(language_model: PreTrainedModel, backend: str = "inductor") -> int:
    """Compile each decoder layer in place, which renames no parameter; returns the number of layers.

    Norms, rotary embeddings and gates of a layer become a few kernels in place of dozens. Layers are alike, so the code of one
    serves all; to compile the model as a whole would take longer by the number of layers.

    Args:
        language_model: a model whose class names its layers (``_no_split_modules``).
        backend: of ``torch.compile``.

    Raises:
        ValueError: the model names no layers.
    """
    layers = decoder_layers(language_model)
    if not layers:
        raise ValueError(
            f"model.compile = True: {type(language_model).__name__} does not name its layers (_no_split_modules); set false"
        )
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
    return len(layers)

"""Passes with weights rounded as an engine has them, at the memory of one decoder layer: each is rounded while it computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.models.activation_checkpointing import decoder_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def rounded(language_model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    """Inside, passes compute with the values that weights have in ``dtype``; afterwards, these have their own again.

    With shards it stands inside a pass, where the weights that no layer has are whole; a layer's are in its own part of it.
    """
    layers = decoder_layers(language_model)
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    with ExitStack() as stack:
        for layer in layers:
            _round_in_passes(layer, dtype, stack)
        stack.enter_context(_changed([p for p in language_model.parameters() if id(p) not in inside], dtype))
        yield


def _round_in_passes(layer: torch.nn.Module, dtype: torch.dtype, stack: ExitStack) -> None:
    """Let the layer be rounded in each pass, as long as ``stack`` is open."""
    own = ExitStack()

    def before(module: torch.nn.Module, arguments: Any) -> None:
        own.enter_context(_changed(list(module.parameters()), dtype))

    def after(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        own.close()

    # FSDP's hooks are around these: its first one stands in front, its last one behind
    stack.callback(layer.register_forward_pre_hook(before).remove)
    stack.callback(layer.register_forward_hook(after, prepend=True, always_call=True).remove)
    compiled, layer._compiled_call_impl = layer._compiled_call_impl, None  # code that was compiled without hooks has none
    stack.callback(setattr, layer, "_compiled_call_impl", compiled)


@contextmanager
def _changed(parameters: Iterable[torch.Tensor], dtype: torch.dtype) -> Iterator[None]:
    changed = [parameter for parameter in parameters if parameter.dtype != dtype]
    with torch.no_grad():
        before = [parameter.detach().clone() for parameter in changed]
        try:
            for parameter in changed:
                parameter.copy_(parameter.to(dtype))
            yield
        finally:
            for parameter, values in zip(changed, before, strict=True):
                parameter.copy_(values)

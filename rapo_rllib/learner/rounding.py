"""Passes with weights as an engine has them, at the memory of one decoder layer: each is rounded while it computes.

Adapters, which an engine merges, are merged in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.learner.adapters import Adapters
from rapo_rllib.models.activation_checkpointing import decoder_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def rounded(language_model: PreTrainedModel, dtype: torch.dtype, adapters: Adapters | None = None) -> Iterator[None]:
    """Round weights to ``dtype`` inside, where passes compute with these values; afterwards they have their own again.

    With shards it stands inside a pass, where the weights that no layer has are whole; a layer's are in its own part of it.
    Adapters, which the caller has switched off, are in the weights.
    """
    layers = decoder_layers(language_model)
    changed = partial(_changed, dtype=dtype, adapters=adapters)
    with ExitStack() as stack:
        for layer in layers:
            _change_in_passes(layer, layers, changed, stack)
        stack.enter_context(changed(_own_weights(language_model, layers)))
        yield


def _own_weights(module: torch.nn.Module, layers: list[torch.nn.Module]) -> list[torch.Tensor]:
    """List the module's weights that are in no layer inside it."""
    inner = set(layers) & set(module.modules()) - {module}
    others = {id(parameter) for layer in inner for parameter in layer.parameters()}
    return [parameter for parameter in module.parameters() if id(parameter) not in others]


def _change_in_passes(
    layer: torch.nn.Module, layers: list[torch.nn.Module], changed: Callable[..., Any], stack: ExitStack
) -> None:
    """Let the layer's weights be others in each pass, as long as ``stack`` is open."""
    own = stack.enter_context(ExitStack())  # open after a pass that was interrupted

    def before(module: torch.nn.Module, arguments: Any) -> None:
        own.enter_context(changed(_own_weights(module, layers)))

    def after(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        own.close()

    # FSDP's hooks are around these: its first one stands in front, its last one behind
    stack.callback(layer.register_forward_pre_hook(before).remove)
    stack.callback(layer.register_forward_hook(after, prepend=True, always_call=True).remove)
    compiled, layer._compiled_call_impl = layer._compiled_call_impl, None  # code that was compiled without hooks has none
    stack.callback(setattr, layer, "_compiled_call_impl", compiled)


@contextmanager
def _changed(parameters: Iterable[torch.Tensor], dtype: torch.dtype, adapters: Adapters | None) -> Iterator[None]:
    merges, before = {} if adapters is None else adapters.merges(), list[tuple[torch.Tensor, torch.Tensor]]()
    with torch.no_grad():
        try:
            for parameter in parameters:
                make = merges.get(id(parameter), parameter.detach if parameter.dtype != dtype else None)
                if make is not None:
                    before.append((parameter, parameter.detach().clone()))
                    parameter.copy_(make().to(parameter.dtype).to(dtype))
            yield
        finally:
            for parameter, values in before:
                parameter.copy_(values)

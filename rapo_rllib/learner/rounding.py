"""Passes with weights as an engine has them: rounded, one decoder layer at a time, so that only one layer is held twice.

Weights outside of the layers are rounded for the whole pass. Adapters, which an engine merges, are merged in the same way.
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
    """Round weights to ``dtype`` for passes inside the block; afterwards they have their own values again.

    With sharded weights, use it inside a pass: weights outside of the layers are whole there, a layer's while it computes.
    Adapters are merged into the weights; the caller has switched them off.
    """
    layers = decoder_layers(language_model)
    changed = partial(_changed, dtype=dtype, adapters=adapters)
    with ExitStack() as stack:
        for layer in layers:
            _change_in_passes(layer, layers, changed, stack)
        stack.enter_context(changed(_own_weights(language_model, layers)))
        yield


def _own_weights(module: torch.nn.Module, layers: list[torch.nn.Module]) -> list[torch.Tensor]:
    """List the weights of a module that belong to no layer inside it."""
    inner = set(layers) & set(module.modules()) - {module}
    others = {id(parameter) for layer in inner for parameter in layer.parameters()}
    return [parameter for parameter in module.parameters() if id(parameter) not in others]


def _change_in_passes(
    layer: torch.nn.Module, layers: list[torch.nn.Module], changed: Callable[..., Any], stack: ExitStack
) -> None:
    """Apply ``changed`` to a layer's weights during each of its forward passes, until ``stack`` is closed."""
    own = stack.enter_context(ExitStack())  # still open if a pass is interrupted: closed with ``stack``

    def before(module: torch.nn.Module, arguments: Any) -> None:
        own.enter_context(changed(_own_weights(module, layers)))

    def after(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        own.close()

    # FSDP's hooks are around these: its hook before the pass runs first, its hook after the pass last
    stack.callback(layer.register_forward_pre_hook(before).remove)
    stack.callback(layer.register_forward_hook(after, prepend=True, always_call=True).remove)
    compiled, layer._compiled_call_impl = layer._compiled_call_impl, None  # code compiled without hooks runs none
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

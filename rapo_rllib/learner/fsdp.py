"""A language model split over several learners by FSDP2: each has its part of parameters, gradients and optimiser state.

    ShardedModel(function, row) --gather the root's weights--> function(language_model, row) --layer by layer: gather, drop-->

Each decoder layer is an FSDP unit: its weights are gathered only while it computes. All other weights (embeddings, final norm,
LM head) are the root unit, and stay gathered from the start of the forward pass to the end of the backward pass. The LM head
needs that: the model's own ``forward`` does not call it; it runs on chunks of hidden states, and again in the backward pass. So
the root is not the language model but a module around it, whose forward pass can be any function of the model.

The language model keeps its class and the names of its parameters, which are ``DTensor``s between the passes.

Only the first learner loads weights. The others make their model on torch's meta device and receive the values unit by unit, so
that they never hold more than their shards and one unit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.models.activation_checkpointing import decoder_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rapo_rllib.learner.lockstep import Lockstep

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
CallModel = Callable[..., Any]  # calls a function with a language model and further arguments


def call_model(language_model: PreTrainedModel) -> CallModel:
    """Wrap a model that this learner holds whole, so that it is called like a :class:`ShardedModel`."""
    return lambda function, *arguments: function(language_model, *arguments)


class ShardedModel:
    """A sharded language model that functions are called with. All learners make it at once, and call it at once.

    Args:
        language_model: with weights on the first learner, on any device: units move to ``device`` one by one.
        device: of this learner.
        lockstep: carries out the collectives.
        master_weights: True: the shards of trainable weights are float32, and passes compute with them rounded to the dtype
            that ``language_model`` has now.
    """

    def __init__(
        self, language_model: PreTrainedModel, device: torch.device, lockstep: Lockstep, master_weights: bool = False
    ) -> None:
        assert dist.group.WORLD is not None, "learners have joined a process group before they make models"
        self._mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
        self._device, self._lockstep, self._ranks = device, lockstep, Ranks(device, distributed=True)
        self._masters = master_weights
        self._dtype = next(language_model.parameters()).dtype
        # With masters, weights are gathered in bfloat16; gradients are summed and steps taken in float32. MasterWeightAdamW
        # does the same on one learner, with two tensors per weight. param_dtype cannot stand for ``autocast_dtype``: it
        # would change embeddings, norms and the residual stream, which autocast leaves in float32.
        gathered, summed = (self._dtype, torch.float32) if master_weights else (None, None)
        self._precision = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=summed, cast_forward_inputs=False)
        self._root = _Root(language_model)
        layers = decoder_layers(language_model)
        if not layers:
            logger.warning("%s does not name its layers: every pass gathers all weights", type(language_model).__name__)
        self._check_alike(language_model)
        for module in (*layers, self._root):
            self._make_unit(module)
        lockstep.add_model(self._root)
        with torch.no_grad():  # FSDP sets itself up in its first pass; a first pass that broke off could not be reset
            self(lambda _: None)

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function(language_model, *arguments)`` and return its result; it may use any part of the model.

        Unless gradients are switched off, a backward pass through the result must follow.
        """
        result: Result = self._root(function, *arguments)
        if not torch.is_grad_enabled():
            self._root.reshard()  # no backward pass will do it
        return result

    def attempt(self, work: Callable[[], Result], stand_in: Callable[[], Any]) -> Result:
        """Call ``work``; if it raises on a learner, that learner ends its passes with ``stand_in``, and all learners raise."""
        with self._ranks.raise_on_all_ranks("a trial pass"):
            return self._lockstep.run([work], lambda function: function(), lambda _: stand_in())[0]

    def computed(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight, or a shard of it, in the dtype that passes compute with."""
        return weight.to(self._dtype) if self._masters and weight.is_floating_point() else weight

    def _check_alike(self, language_model: PreTrainedModel) -> None:
        """Refuse a model that has other tensors if made without weights: the first learner's values would go to wrong ones."""
        held = chain(language_model.named_parameters(), language_model.named_buffers())
        own = {(name, tensor.dtype, tensor.shape) for name, tensor in held}
        firsts, name = [own], type(language_model).__name__
        dist.broadcast_object_list(firsts, src=0)
        with self._ranks.raise_on_all_ranks("making the model without weights"):
            if wrong := sorted(firsts[0] ^ own, key=str):
                different = (
                    f"a {name} without weights has other tensors than one with weights, {wrong[0]} for one (is it tied?)"
                )
                raise ValueError(f"learner_parallelism = 'fsdp': {different}; set 'ddp'")

    def _take_values(self, module: torch.nn.Module) -> None:
        """Move a unit to the device, and give it the first learner's values."""
        tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if not isinstance(tensor, DTensor)]
        with self._ranks.raise_on_all_ranks("making room for the model"):
            for tensor in tensors:
                if not tensor.is_meta:
                    tensor.data = tensor.data.to(self._device).contiguous()
                    continue
                empty = torch.empty_like(tensor, device=self._device)
                if isinstance(tensor, torch.nn.Parameter):
                    empty = torch.nn.Parameter(empty, tensor.requires_grad)
                torch.utils.swap_tensors(tensor, empty)  # in place: tied weights stay one tensor
        self._ranks.copy_from_first(tensors)

    def _make_unit(self, module: torch.nn.Module) -> None:
        self._take_values(module)
        if self._masters:
            for parameter in module.parameters():
                if parameter.requires_grad and not isinstance(parameter, DTensor):
                    parameter.data = parameter.data.float()
        fully_shard(module, mesh=self._mesh, mp_policy=self._precision)
        self._lockstep.add_unit(module)


class _Root(torch.nn.Module):
    """Module around a language model whose forward pass is any function of that model; it is the root unit."""

    reshard: Callable[[], None]  # added by FSDP

    def __init__(self, language_model: PreTrainedModel) -> None:
        super().__init__()
        self.language_model = language_model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.language_model, *arguments)

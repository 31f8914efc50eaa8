"""The LoRA adapters in the learner's language model: how they are put in, trained, switched off, merged and saved.

``peft`` puts a module around every target, so ``x.q_proj.weight`` becomes the parameter ``x.q_proj.base_layer.weight``. Only
this file translates the names: elsewhere, weights are named as in their checkpoint, and adapters as in an adapter file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.models.lora import LORA_A, LORA_B, check_targets, merge
from rapo_rllib.settings import LoraSettings
from rapo_rllib.weights.dtensor import full_tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ADAPTER = "default"  # peft's name of the only adapter
_WRAPPED = ".base_layer."  # what peft's module adds to the name of a target's own weight


class Adapters:
    """The adapters of a language model. The constructor puts them into the model and freezes everything else.

    Adapters are float32 even beside bfloat16 weights: at usual learning rates a step is smaller than bfloat16 resolves. They
    start alike on all learners, with ``B = 0``: at first, the policy is the base model.
    """

    def __init__(self, language_model: PreTrainedModel, settings: LoraSettings) -> None:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        check_targets(language_model, settings)
        targets = settings.target_modules
        self._model, self._settings = language_model, settings
        self._config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft divides it by the rank, as a float
            target_modules=targets if isinstance(targets, str) else list(targets),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            inject_adapter_in_model(self._config, language_model)
        self._layers: dict[str, Any] = {
            name: module for name, module in language_model.named_modules() if isinstance(module, LoraLayer)
        }
        for parameter in self.tensors().values():
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))

    def tensors(self) -> dict[str, torch.nn.Parameter]:
        """Return the live parameters of the adapters, by their names in an adapter file."""
        named: dict[str, torch.nn.Parameter] = {}
        for name, layer in self._layers.items():
            named[name + LORA_A], named[name + LORA_B] = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        return named

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the adapters off inside the block: there, the model is the one that training started from."""
        for layer in self._layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(True)

    def merges(self) -> dict[int, Callable[[], torch.Tensor] | None]:
        """Map the ``id`` of each target's weight to a function that merges the adapter into it; of each adapter, to None.

        With shards, parameters are other objects inside a pass: call it there to get the ids of these.
        """
        made: dict[int, Callable[[], torch.Tensor] | None] = {id(tensor): None for tensor in self.tensors().values()}
        return made | {id(layer.base_layer.weight): partial(self._merged, name) for name, layer in self._layers.items()}

    def _merged(self, name: str) -> torch.Tensor:
        """Merge the adapter of a target into its weight; shards are gathered."""
        layer = self._layers[name]
        parts = layer.base_layer.weight, layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        weight, lora_a, lora_b = (full_tensor(part.detach()) for part in parts)
        return merge(weight, lora_a, lora_b, self._settings.scaling)

    @torch.no_grad()
    def merged_state(self, keep: bool = True) -> dict[str, torch.Tensor]:
        """Merge the adapters into copies of all weights, which have the names of the checkpoint and the model's dtypes.

        The live weights stay as they are. ``keep=False`` is for a learner that only gives its shards: its result is empty.
        """
        adapters = set(map(id, self.tensors().values()))
        weights = {name: value for name, value in self._model.state_dict(keep_vars=True).items() if id(value) not in adapters}
        targets = {f"{name}{_WRAPPED}weight": name for name in self._layers}
        made: dict[int, torch.Tensor] = {}  # tied weights stay one tensor
        for name, value in weights.items():
            if id(value) not in made:
                full = self._merged(targets[name]).to(value.dtype) if name in targets else full_tensor(value.detach())
                made[id(value)] = full.cpu() if keep else full.new_empty(0)
        return {name.replace(_WRAPPED, "."): made[id(value)] for name, value in weights.items()} if keep else {}

    def save(self, folder: str, base_model: str, write: bool = True) -> None:
        """Write the adapters alone, as a folder that ``PeftModel.from_pretrained`` and vLLM load onto ``base_model``.

        ``write=False`` is for a learner that only gives its shards.
        """
        from peft.utils import SAFETENSORS_WEIGHTS_NAME
        from safetensors.torch import save_file

        named = {f"base_model.model.{name}": full_tensor(tensor.detach()).cpu() for name, tensor in self.tensors().items()}
        if not write:
            return
        self._config.base_model_name_or_path, self._config.inference_mode = base_model, True
        self._config.save_pretrained(folder)
        save_file(named, Path(folder) / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})

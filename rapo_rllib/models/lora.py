"""LoRA: small adapters beside frozen weights, by ``peft``. ``W`` becomes ``W + scaling * B A``; only ``A`` and ``B`` train.

    frozen W, on disk --+--> learner:         W x + scaling * B (A x);  adapters off: the model that training started from
    adapters A, B ------+--> engine, export:  one matrix, merged

Here, weights are named as in their checkpoint, and adapters as in an adapter file: ``x.q_proj.lora_A.weight`` and
``x.q_proj.lora_B.weight`` change ``x.q_proj.weight``. The learner's model has other names: see ``learner/adapters.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.settings import ALL_LINEAR, LoraSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"  # suffixes of a target's name
_KEY = "model.lora.target_modules"


def merge(weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, scaling: float) -> torch.Tensor:
    """Compute ``W + scaling * B A``, ``[out, in]``, in at least the adapters' float32, so that the sum is rounded once."""
    wide = torch.promote_types(weight.dtype, lora_a.dtype)
    return torch.addmm(weight.to(wide), lora_b.to(wide), lora_a.to(wide), alpha=scaling)


def merged_weights(
    base: Iterable[tuple[str, torch.Tensor]],
    adapters: Mapping[str, torch.Tensor],
    scaling: float,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a checkpoint one after the other, with the adapters merged into their targets.

    Args:
        base: names and weights of the model that training started from.
        adapters: the tensors of ``Adapters.tensors()``.
        scaling: of the adapters.
        dtype: in which the learner holds the base; weights are rounded to it before adapters are merged.
        device: where to merge.

    Raises:
        WeightSyncError: an adapter belongs to no weight of the checkpoint.
    """
    waiting = {name.removesuffix(LORA_A) for name in adapters if name.endswith(LORA_A)}
    for name, weight in base:
        held = weight.to(dtype) if weight.is_floating_point() else weight
        target = name.removesuffix(".weight")
        if target in waiting:
            waiting.remove(target)
            lora_a, lora_b = (adapters[target + part].to(device) for part in (LORA_A, LORA_B))
            held = merge(held.to(device), lora_a, lora_b, scaling)
        yield name, held
    if waiting:
        raise WeightSyncError(
            f"{len(waiting)} adapters belong to no weight of the model on disk, that of {min(waiting)!r} for one: it names its "
            f"weights differently there. Leave these modules out of {_KEY}, or train without model.lora."
        )


def check_targets(language_model: PreTrainedModel, settings: LoraSettings) -> None:
    """Refuse adapter targets that this model does not have, or into which an adapter cannot be merged.

    Raises:
        ValueError: a target is refused; names it, and for a missing one the linear layers that there are.
    """
    modules = dict(language_model.named_modules())
    head = language_model.get_output_embeddings()
    linear = [name for name, module in modules.items() if isinstance(module, torch.nn.Linear) and module is not head]
    known = ", ".join(sorted({name.rpartition(".")[2] for name in linear})) or "none"
    if settings.target_modules == ALL_LINEAR and not linear:
        raise ValueError(
            f"{_KEY} = {ALL_LINEAR!r}: a {type(language_model).__name__} has no linear layers; leave model.lora out"
        )
    for target in () if settings.target_modules == ALL_LINEAR else settings.target_modules:
        found = [module for name, module in modules.items() if name == target or name.endswith(f".{target}")]
        if not found or not all(isinstance(module, torch.nn.Linear) for module in found):
            raise ValueError(f"{_KEY}: {target!r} names no linear layers of this model, which are {known}")
        if head in found and language_model.config.get_text_config().tie_word_embeddings:
            raise ValueError(
                f"{_KEY}: {target!r} shares its weight with the embedding, which an adapter would tear apart; leave it out"
            )

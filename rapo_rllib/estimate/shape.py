"""Sizes of a language model, counted on its modules without weights (torch's meta device)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rapo_rllib.settings import ALL_LINEAR, LoraSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that memory and time depend on. Counts are numbers of elements, tied weights counted once."""

    parameters: int
    matrices: int  # of these, those that every token is multiplied with: all but embeddings; the LM head, tied or not, is one
    adapters: int  # that LoRA adds; 0 without
    adapted: int  # parameters of the layers that LoRA adds them to
    root: int  # parameters outside of the decoder layers: embeddings, norm, LM head
    largest_layer: int  # parameters of the largest decoder layer
    head: int  # elements of the LM head
    tied: bool  # whether the LM head is the embedding
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int


def model_shape(skeleton: PreTrainedModel, lora: LoraSettings | None) -> ModelShape:
    """Count. ``skeleton`` may lie on the meta device, before adapters are put into it."""
    config = skeleton.config.get_text_config()
    head = skeleton.get_output_embeddings().weight
    names = set(skeleton._no_split_modules or ())
    layers = [_size(module) for module in skeleton.modules() if type(module).__name__ in names]
    parameters = _size(skeleton)
    targets = _targets(skeleton, lora) if lora is not None else []
    heads = config.num_attention_heads
    tied = head is skeleton.get_input_embeddings().weight
    embedding = 0 if tied else skeleton.get_input_embeddings().weight.numel()
    return ModelShape(
        parameters=parameters,
        matrices=parameters - embedding,
        adapters=sum(adapter_size(t.out_features, t.in_features, lora.rank) for t in targets) if lora is not None else 0,
        adapted=sum(target.weight.numel() for target in targets),
        root=parameters - sum(layers),
        largest_layer=max(layers, default=0),
        head=head.numel(),
        tied=tied,
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=head.shape[0],
    )


def adapter_size(outputs: int, inputs: int, rank: int) -> int:
    """Elements of LoRA's two matrices beside a linear layer: ``A [rank, inputs]`` and ``B [outputs, rank]``.

    ``rank * (inputs + outputs)``; "LoRA", arXiv 2106.09685, section 4.1.
    """
    return rank * (inputs + outputs)


def kv_bytes_per_token(shape: ModelShape, itemsize: int, tensor_parallel_size: int = 1) -> int:
    """Bytes of a token's keys and values in one worker of an engine: ``2 * layers * kv_heads * head_dim * itemsize``.

    Heads are dealt out to tensor-parallel workers; where there are fewer, each worker has one (vLLM's
    ``ModelConfig.get_num_kv_heads``).
    """
    return 2 * shape.layers * max(1, shape.kv_heads // tensor_parallel_size) * shape.head_dim * itemsize


def _size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())  # tied ones come once


def _targets(skeleton: PreTrainedModel, lora: LoraSettings) -> list[Any]:
    """The linear layers that adapters come to, as ``peft`` chooses them."""
    import torch

    head = skeleton.get_output_embeddings()
    named = [(name, module) for name, module in skeleton.named_modules() if isinstance(module, torch.nn.Linear)]
    if lora.target_modules == ALL_LINEAR:
        return [module for _, module in named if module is not head]
    return [m for name, m in named if any(name == target or name.endswith(f".{target}") for target in lora.target_modules)]

"""Forward and backward pass of a packed row: attention, precision, checkpointing; one is changed at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpu_parts.machine import SHAPES, Sizes, peak_bytes, peak_flops, seconds, twice, wait
from gpu_parts.models import model_flops, model_of, row_of
from rapo_rllib.attention.forward import RowAttention, hidden_states, use_attention
from rapo_rllib.batching.chunked_logprobs import logprobs_and_entropies
from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.learner.master_weights import MasterWeightAdamW
from rapo_rllib.models.activation_checkpointing import compile_layers, enable_checkpointing


@dataclass(frozen=True)
class Way:
    """A way to compute a row."""

    attention: RowAttention
    masters: bool = True  # bfloat16 weights, gradients in float32; False: float32 weights under autocast
    checkpointing: bool | str = True
    compiled: bool = False

    def __str__(self) -> str:
        precision = "bfloat16, masters" if self.masters else "float32, autocast"
        return f"{self.attention}, {precision}, checkpointing {self.checkpointing}{', compiled' if self.compiled else ''}"


def measured(sizes: Sizes) -> dict[str, Any]:
    """By shape, tokens of the row, and way. What does not fit says so."""
    return {f"{shape}, rows of {rows}": _of(shape, rows, sizes) for shape in sizes.shapes for rows in sizes.rows}


def _ways(device: str) -> list[Way]:
    usual = Way(RowAttention.FLEX if device == "cuda" else RowAttention.BLOCKS)
    others = [RowAttention.BLOCKS, RowAttention.MASK, RowAttention.UNSHARED]
    found = [usual, *(replace(usual, attention=other) for other in others if other is not usual.attention)]
    found += [replace(usual, masters=False), replace(usual, checkpointing="selective"), replace(usual, checkpointing=False)]
    return [*found, replace(usual, compiled=True)] if device == "cuda" else found


def _of(shape: str, tokens: int, sizes: Sizes) -> dict[str, Any]:
    exact = _exact_gradient(shape, sizes)
    return {str(way): _figures(shape, way, tokens, exact, sizes) for way in _ways(sizes.device)}


def _figures(shape: str, way: Way, tokens: int, exact: torch.Tensor, sizes: Sizes) -> dict[str, Any]:
    """``tokens_per_s`` counts the tokens of the shared row, whatever is computed."""
    device, share = sizes.device, way.attention is not RowAttention.UNSHARED
    shared = row_of(tokens, SHAPES[shape].vocabulary)
    row = row_of(tokens, SHAPES[shape].vocabulary, share=share).to(device)
    try:
        made = Trained(shape, way, device)
        error = float((made.gradient(_short_row(shape, share, device)) - exact).norm() / exact.norm())
        first = _timed(lambda: made.run(row), device)
        peak = peak_bytes(device, lambda: made.run(row))
        found = twice(lambda: seconds(lambda: made.run(row), device, 2))
    except torch.OutOfMemoryError as problem:
        return {"does not fit": str(problem).splitlines()[0]}
    flops = sum(model_flops(SHAPES[shape], shared).values())
    return {
        "tokens": shared.num_tokens,
        "tokens_per_s": [shared.num_tokens / one for one in found],
        "mfu": [_share(flops / one, device) for one in found],
        "peak_bytes": peak,
        "first_pass_s": first,
        "gradient_error": error,
    }


class Trained:
    """A model that takes gradients as the learner's does; moments of its optimiser come with a first step, which none takes."""

    def __init__(self, shape: str, way: Way, device: str, autocast: bool = True) -> None:
        self._way, self._autocast = way, autocast and not way.masters
        self.model = model_of(shape, torch.bfloat16 if way.masters else torch.float32, device)
        use_attention(self.model, way.attention)
        enable_checkpointing(self.model, way.checkpointing)
        if way.compiled:
            compile_layers(self.model)
        weights = list(self.model.parameters())
        self._optimizer = MasterWeightAdamW(weights) if way.masters else torch.optim.AdamW(weights)
        self._taking = dict(zip(weights, self._optimizer.param_groups[0]["params"], strict=True)) if way.masters else {}

    def run(self, row: PackedRow) -> None:
        """Forward and backward pass."""
        self._optimizer.zero_grad(set_to_none=True)
        device = row.token_ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._autocast):
            states = hidden_states(self.model, row, self._way.attention)[row.scored_positions]
            logprobs, _ = logprobs_and_entropies(states, row.scored_ids, self.model.get_output_embeddings())
        (-(logprobs[row.loss_index] * row.weights).sum()).backward()

    def gradient(self, row: PackedRow) -> torch.Tensor:
        """Collect gradients of some weights of the first and the last layer."""
        self.run(row)
        layers = self.model.get_decoder().layers
        weights = (layers[0].self_attn.q_proj.weight, layers[0].mlp.up_proj.weight, layers[-1].self_attn.k_proj.weight)
        return torch.cat([self._taking.get(weight, weight).grad.float().flatten() for weight in weights])


def _exact_gradient(shape: str, sizes: Sizes) -> torch.Tensor:
    """In float32 throughout, of a short row, by SDPA with one dense mask."""
    return Trained(shape, Way(RowAttention.MASK, masters=False), sizes.device, autocast=False).gradient(
        _short_row(shape, True, sizes.device)
    )


def _short_row(shape: str, share: bool, device: str) -> PackedRow:
    return row_of(256, SHAPES[shape].vocabulary, seed=1, share=share).to(device)


def _share(flops: float, device: str) -> float | None:
    peak = peak_flops(torch.cuda.get_device_name()) if device == "cuda" else None
    return None if peak is None else flops / peak


def _timed(work: Any, device: str) -> float:
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start

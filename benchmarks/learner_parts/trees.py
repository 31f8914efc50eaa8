"""The worth of sharing prefixes: a pass on trajectories packed as trees, and on the same ones each whole, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gpu_parts.machine import wait
from gpu_parts.models import model_flops

from learner_parts.side import peak_bytes, reset_peak, resident_bytes
from learner_parts.step import Trained, tree_group
from learner_parts.tree_shapes import TreeShape
from rapo_rllib.attention.forward import RowAttention
from rapo_rllib.batching.packing import PackedRow, pack_rows
from rapo_rllib.batching.samples import SampleGroup

MAX_TOKENS = 9000  # at a time, either way
SMALL = TreeShape(32, ((2, 32),))
WAYS = ("shared", "plain")


def measured(trained: Trained, shapes: Mapping[str, TreeShape], rounds: int) -> dict[str, Any]:
    """Seconds, tokens, memory and gradients of each shape, both ways."""
    for way in WAYS:  # what a first pass sets up is not measured
        _pass(trained, tree_group(SMALL, trained.shape.vocabulary), way)
    return {name: _compared(trained, tree_group(shape, trained.shape.vocabulary), rounds) for name, shape in shapes.items()}


def rows_of(group: SampleGroup, way: str) -> list[PackedRow]:
    """Rows of prefix trees, as the package packs them, or of whole sequences."""
    return pack_rows([group], MAX_TOKENS, share=way == "shared")


def _compared(trained: Trained, group: SampleGroup, rounds: int) -> dict[str, Any]:
    warm_up = int(trained.device == "cuda")  # FlexAttention is compiled for the row
    steps: dict[str, list[tuple[float, int]]] = {way: [] for way in WAYS}
    for index in range(rounds + warm_up):
        gradients = {}
        for way in WAYS if index % 2 else WAYS[::-1]:  # neither always pays for what comes first
            steps[way].append(_pass(trained, group, way))
            if index == 0:
                gradients[way] = [weight.grad.clone() for weight in trained.model.parameters()]
        if index == 0:
            difference = greatest_difference(*(gradients[way] for way in WAYS))
    counted = {way: steps[way][warm_up:] for way in WAYS}
    rows = {way: rows_of(group, way) for way in WAYS}
    flops = {way: sum(sum(model_flops(trained.shape, row).values()) for row in rows[way]) for way in WAYS}
    tokens = {way: sum(row.num_tokens for row in rows[way]) for way in WAYS}
    return {
        "seconds": {way: [seconds for seconds, _ in counted[way]] for way in WAYS},
        "speedup": ratios(*([seconds for seconds, _ in counted[way]] for way in WAYS)),
        "tokens": tokens,
        "tokens_ratio": tokens["plain"] / tokens["shared"],
        "flops_ratio": flops["plain"] / flops["shared"],
        "peak_gib": {way: max(peak for _, peak in counted[way]) / 2**30 for way in WAYS},
        "gradient_difference": difference,
    }


def ratios(shared: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest of ``plain / shared`` in neighbouring passes.

    Example: 1, 2 and 2 seconds against 3, 8 and 4 are ratios of 3, 4 and 2.
    """
    found = [other / own for own, other in zip(shared, plain, strict=True)]
    return {"median": statistics.median(found), "least": min(found), "greatest": max(found)}


def greatest_difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The greatest of ``|found - expected| / |expected|``, norms of whole weights; 0 / 0 is 0."""
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).norm() / b.norm().clamp_min(torch.finfo(b.dtype).tiny)) for a, b in pairs)


def _pass(trained: Trained, group: SampleGroup, way: str) -> tuple[float, int]:
    """Seconds of packing, forward, loss and backward, and the most bytes above those held before."""
    trained.model.zero_grad(set_to_none=True)
    reset_peak()
    before = resident_bytes()
    started = time.perf_counter()
    attention = trained.attention if way == "shared" else RowAttention.UNSHARED
    trained.gradients(rows_of(group, way), attention)
    wait(trained.device)
    return time.perf_counter() - started, peak_bytes() - before


def print_trees(shapes: dict[str, Any]) -> None:
    """A line for each shape."""
    print("\nforward, loss and backward: prefix trees, and the same trajectories each whole")
    heads = ("tokens", "whole", "ratio", "of flops", "speedup", "GiB", "whole", "gradients")
    print(f"    {'':<12}" + _cells(heads))
    for name, part in shapes.items():
        tokens, peak, speedup = part["tokens"], part["peak_gib"], part["speedup"]
        cells = [str(tokens[way]) for way in WAYS] + [f"{part[ratio]:.2f}" for ratio in ("tokens_ratio", "flops_ratio")]
        cells += [f"{speedup['median']:.2f} ({speedup['least']:.2f} to {speedup['greatest']:.2f})"]
        cells += [*(f"{peak[way]:.2f}" for way in WAYS), f"{part['gradient_difference']:.1e}"]
        print(f"    {name:<12}" + _cells(cells))


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, (8, 8, 7, 9, 23, 7, 7, 10), strict=True))

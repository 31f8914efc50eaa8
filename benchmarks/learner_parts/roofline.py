"""Where a step's time goes, and how near each part comes to what this machine multiplies and copies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_parts.machine import Shape, Sizes, copy_rate, product_flops, wait
from gpu_parts.models import model_flops

from learner_parts.bodies import GRAD_CLIP, LEARNING_RATE, WEIGHT_DECAY
from learner_parts.clock import OTHER, PartClock
from learner_parts.step import Trained, tree_group
from learner_parts.tree_shapes import TreeShape
from learner_parts.trees import SMALL, rows_of
from rapo_rllib.batching.chunked_logprobs import logprobs_and_entropies
from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.models.activation_checkpointing import decoder_layers

DTYPES = ("float32", "bfloat16")
PARTS = ("attention", "mlp", "head", "optimizer", OTHER)
# numbers for each weight: clipping reads the gradient, reads it again and writes it; AdamW reads weight, gradient and two
# moments and writes all but the gradient
MOVED = 10
TOKENS, CHUNK = 2048, 1024  # rows of a layer's product, and of the head's
TRIES = 3  # the best counts


def measured(trained: Trained, shapes: Mapping[str, TreeShape], rounds: int, dtype: str) -> dict[str, Any]:
    """Rates of the machine; then for each shape seconds by part, and the least that these rates allow."""
    rates = {name: product_rates(trained.shape, getattr(torch, name), trained.device) for name in DTYPES}
    weights = sum(weight.nbytes for weight in trained.model.parameters())
    copied = replace(Sizes.small(), copied_bytes=2 * weights, device=trained.device)  # each read and written
    bytes_per_s = max(copy_rate(copied) for _ in range(TRIES))
    steps = _Steps(trained)
    steps.take(tree_group(SMALL, trained.shape.vocabulary))  # AdamW's moments are made
    found = {}
    for name, shape in shapes.items():
        group = tree_group(shape, trained.shape.vocabulary)
        flops = {part: sum(model_flops(trained.shape, row)[part] for row in rows_of(group, "shared")) for part in PARTS[:3]}
        least = least_seconds(flops, MOVED * weights, max(rates[dtype].values()), bytes_per_s)
        found[name] = {"model_flops": sum(flops.values()), **figures([steps.parts(group) for _ in range(rounds)], least)}
        found[name]["seconds_without_clocks"] = steps.take(group)
    return {"flops_per_s": rates, "copy_bytes_per_s": bytes_per_s, "dtype": dtype, "steps": found}


def product_rates(shape: Shape, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Operations a second of the products that take most of a pass, the best of some tries."""
    products = {
        "attention": (TOKENS, shape.hidden, shape.hidden),
        "mlp": (TOKENS, shape.hidden, shape.intermediate),
        "head": (CHUNK, shape.hidden, shape.vocabulary),
    }
    return {name: max(product_flops(*sizes, dtype, device) for _ in range(TRIES)) for name, sizes in products.items()}


def least_seconds(flops: Mapping[str, float], moved: float, flops_per_s: float, bytes_per_s: float) -> dict[str, float]:
    """The roofline of each part: ``flops / flops_per_s``, and of the optimizer, ``moved`` bytes, ``moved / bytes_per_s``."""
    return {**{part: count / flops_per_s for part, count in flops.items()}, "optimizer": moved / bytes_per_s}


def figures(rounds: list[dict[str, float]], least: Mapping[str, float]) -> dict[str, Any]:
    """Medians of a step's parts, their shares of it, and ``least / seconds``: of each part, and of the step.

    Example: rounds of 6 s in the MLP and 4 elsewhere, where the machine could do the MLP in 3: shares of 0.6 and 0.4, half of
    the roofline in the MLP, 0.3 of it in the step.
    """
    seconds = {part: statistics.median(one.get(part, 0.0) for one in rounds) for part in PARTS}
    whole = sum(seconds.values())
    return {
        "seconds": seconds,
        "share": {part: value / whole for part, value in seconds.items()},
        "of_roofline": {part: value / seconds[part] for part, value in least.items() if seconds[part]},
        "step_of_roofline": sum(least.values()) / whole,
    }


class _Steps:
    """Optimiser steps with clocks in the model, or without."""

    def __init__(self, trained: Trained) -> None:
        self._trained, self._weights = trained, list(trained.model.parameters())
        self._optimizer = torch.optim.AdamW(self._weights, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
        self._clock = PartClock(partial(_now, trained.device))

    def take(self, group: SampleGroup, score: Any = logprobs_and_entropies) -> float:
        """Seconds of packing, forward, loss, backward, clipping and AdamW."""
        started = _now(self._trained.device)
        self._optimizer.zero_grad()
        self._trained.gradients(rows_of(group, "shared"), self._trained.attention, score)
        with self._clock.part("optimizer"):
            torch.nn.utils.clip_grad_norm_(self._weights, GRAD_CLIP)
            self._optimizer.step()
        return _now(self._trained.device) - started

    def parts(self, group: SampleGroup) -> dict[str, float]:
        """Seconds of a step by part."""
        clocked: list[tuple[torch.nn.Module, str]] = []
        for layer in decoder_layers(self._trained.model):
            # also the layer: the backward pass of its MLP, which is open then, asks for all of it to be computed again
            clocked += [(layer.self_attn, "attention"), (layer.mlp, "mlp"), (layer, OTHER)]
        for module, part in clocked:
            module.forward = self._clock.of(part, module.forward)
        try:
            self._clock.taken()
            self.take(group, self._clock.of("head", logprobs_and_entropies))
            return self._clock.taken()
        finally:
            for module, _ in clocked:
                del module.forward  # what the class has is back


def _now(device: str) -> float:
    wait(device)
    return time.perf_counter()


def print_roofline(found: dict[str, Any]) -> None:
    """The machine's rates, and a line for each part of each step."""
    print()
    for dtype, rates in found["flops_per_s"].items():
        print(
            f"\nGflop/s of {dtype} products: " + ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.items()), end=""
        )
    print(f"\ncopy: {found['copy_bytes_per_s'] / 1e9:.1f} GB/s read and written; {found['dtype']} is what steps are held to")
    for name, step in found["steps"].items():
        print(f"\n{name}: {step['model_flops'] / 1e12:.2f} Tflop, {step['seconds_without_clocks']:.2f} s without clocks")
        print(f"    {'':<10} {'seconds':>9} {'share':>6} {'of roofline':>12}")
        for part in PARTS:
            reached = f"{step['of_roofline'][part]:.2f}" if part in step["of_roofline"] else "-"
            print(f"    {part:<10} {step['seconds'][part]:>9.3f} {step['share'][part]:>6.2f} {reached:>12}")
        print(f"    {'step':<10} {sum(step['seconds'].values()):>9.3f} {1:>6.2f} {step['step_of_roofline']:>12.2f}")

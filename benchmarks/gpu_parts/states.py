"""Memory of a learner between two updates, where it scores as an engine would: before gradients were freed, and after."""

from __future__ import annotations

from typing import Any

import torch

from gpu_parts.machine import Sizes, peak_bytes, twice
from gpu_parts.models import model_of
from rapo_rllib.learner.rounding import rounded


def measured(sizes: Sizes) -> dict[str, Any]:
    """Peaks in bytes; weights alone beside them. Weights and gradients are bfloat16, so that a 7B shape fits a GPU of 80 GB."""
    model = model_of(sizes.states_shape, torch.bfloat16, sizes.device)
    ids = torch.zeros(1, 64, dtype=torch.int64, device=sizes.device)

    @torch.no_grad()
    def score() -> None:
        with rounded(model, torch.float16):  # another dtype than its own: all are rounded
            model(input_ids=ids, use_cache=False)

    def kept() -> int | None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return peak_bytes(sizes.device, score)

    def freed() -> int | None:
        model.zero_grad(set_to_none=True)
        return peak_bytes(sizes.device, score)

    weights = sum(parameter.nbytes for parameter in model.parameters())
    return {"weights, bytes": weights, "gradients kept": _or_word(twice(kept)), "gradients freed": _or_word(twice(freed))}


def _or_word(found: list[int | None]) -> Any:
    return {"skipped": "nobody counts tensors on a CPU"} if None in found else found

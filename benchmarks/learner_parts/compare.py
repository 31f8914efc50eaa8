"""Sides taking turns, and the ratios of neighbouring steps."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rollout_parts.bench import cpu_name

from learner_parts.bodies import limit, ours, trl
from learner_parts.side import Options, Side, Step

BODIES = {"ours": ours, "trl": trl, "limit": limit}


def compare(options: Options, file: Path, pairs: int, warm_up: bool) -> dict[str, Any]:
    """Steps of all sides on the batch in ``file``, in turns."""
    sides = {name: Side(body, options, file) for name, body in BODIES.items()}
    try:
        rounds = [{name: side.step() for name, side in sides.items()} for _ in range(pairs + warm_up)]
    finally:
        for side in sides.values():
            side.close()
    first, counted = rounds[0], rounds[warm_up:]

    def median(value: Callable[[dict[str, Step]], float]) -> float:
        return float(statistics.median(map(value, counted)))

    return {
        "speedup": median(lambda steps: steps["trl"].seconds / steps["ours"].seconds),
        "speedup_in_cpu_seconds": median(lambda steps: steps["trl"].cpu_seconds / steps["ours"].cpu_seconds),
        "share_of_limit": median(lambda steps: _tokens_per_s(steps["ours"]) / _tokens_per_s(steps["limit"])),
        "peak_memory_ratio": median(lambda steps: steps["ours"].peak_bytes / steps["trl"].peak_bytes),
        "gradient_norm_difference": abs(first["ours"].gradient_norm / first["trl"].gradient_norm - 1),
        "loss_difference": abs(first["ours"].loss - first["trl"].loss),
        "tokens_per_s": {name: median(lambda steps, name=name: _tokens_per_s(steps[name])) for name in sides},
        "cpu_seconds": {name: median(lambda steps, name=name: steps[name].cpu_seconds) for name in sides},
        "seconds": {name: median(lambda steps, name=name: steps[name].seconds) for name in sides},
        "peak_gib": {name: median(lambda steps, name=name: steps[name].peak_bytes / 2**30) for name in sides},
        "rounds": [{name: asdict(step) for name, step in steps.items()} for steps in rounds],
    }


def _tokens_per_s(step: Step) -> float:
    return step.num_tokens / step.seconds


def machine(options: Options) -> dict[str, Any]:
    """Where the figures come from."""
    import torch

    return {
        "cpu": cpu_name(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "ray")},
        **asdict(options),
    }

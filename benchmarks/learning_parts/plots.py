"""Pictures: held-out accuracy over generated tokens by method, and the noise sweep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from learning_parts.methods import MAIN, NOISE

Runs = dict[str, dict[int, list[dict[str, Any]]]]
_RGB = ("b5432a", "2f5d8a", "6a994e", "8d6a9f", "c9a227", "6b705c", "00798c", "d1495b", "5f0f40", "9a8c98", "118a7e")
COLORS = [f"#{rgb}" for rgb in _RGB]


def curves(runs: Runs, file: Path, ylabel: str = "held-out accuracy, % (greedy, no retrieval)") -> None:
    """Means over seeds, with their range as a band but for ablations. Main methods on the left, ablations on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sides = [[m for m in MAIN if m in runs], ["rapo", *(m for m in runs if m not in MAIN)]]
    sides = [side for side in sides if any(m in runs and m != "rapo" for m in side)]
    figure, axes = pyplot.subplots(
        1, len(sides), figsize=(5.2 * len(sides), 4), layout="constrained", squeeze=False, sharey=True
    )
    for axis, side in zip(axes[0], sides, strict=True):
        for method, color in zip([m for m in side if m in runs], cycle(COLORS)):
            label = f"{method} (p = {NOISE[method]:g})" if method.startswith("noise") else method
            _curve(axis, runs[method], color, label, band=method in (*MAIN, *NOISE))
        axis.set(xlabel="generated tokens, thousands", xlim=(0, None), ylim=(0, None))
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel(ylabel)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def _curve(axis: Any, of_seed: dict[int, list[dict[str, Any]]], color: str, label: str, band: bool) -> None:
    grid, values = on_a_grid(list(of_seed.values()))
    axis.plot(grid / 1000, 100 * values.mean(axis=0), color=color, label=f"{label}, {len(values)} seeds", lw=1.6 if band else 1)
    if band:  # those of the ablations would hide each other
        axis.fill_between(grid / 1000, 100 * values.min(axis=0), 100 * values.max(axis=0), color=color, alpha=0.12, linewidth=0)


def on_a_grid(runs: Sequence[Sequence[dict[str, Any]]], points: int = 60) -> tuple[Any, Any]:
    """Accuracies of runs at common numbers of tokens, between evaluations interpolated: ``[points]``, ``[runs, points]``."""
    curves = [[(row["tokens"], row["accuracy"]) for row in rows if "accuracy" in row] for rows in runs]
    grid = np.linspace(0, min(curve[-1][0] for curve in curves), points)
    return grid, np.array([np.interp(grid, *zip(*curve, strict=True)) for curve in curves])

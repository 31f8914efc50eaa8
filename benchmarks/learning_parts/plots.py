"""A picture of the study: held-out accuracy over generated tokens by arm, and the noise sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learning_parts.arms import CALLS, MAIN, NOISE, PRIMARY
from learning_parts.results import Rows, Runs, Study
from learning_parts.statistics import mean_interval
from learning_parts.tables import NAMES

COLORS = dict(zip(MAIN, ("#2f5d8a", "#b5432a", "#c9a227", "#6a994e", "#8d6a9f"), strict=True))
SHADES = ("#b5432a", "#c46a4f", "#c98d74", "#b3a58f", "#8f9a94", "#6b705c")


def curves(study: Study, file: Path) -> None:
    """Means over seeds with 95 % t intervals: one panel for each number of calculations, and one for the noise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[str, list[tuple[str, str, Runs]]]] = []
    for calls in CALLS:
        lines = [(NAMES[arm].partition(":")[0], COLORS[arm], study[calls, arm]) for arm in MAIN if (calls, arm) in study]
        panels.append((f"{calls} calculations", lines))
    noise = [(f"p = {p:g}", shade, study[PRIMARY, arm]) for (p, arm), shade in zip(NOISE.items(), SHADES, strict=True)
             if (PRIMARY, arm) in study]  # fmt: skip
    panels = [(title, lines) for title, lines in [*panels, ("noise, 3 calculations", noise)] if lines]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), layout="constrained", squeeze=False)
    told: set[str] = set()  # that a legend has said; the panels of arms share one
    for axis, (title, lines) in zip(axes[0], panels, strict=True):
        for label, color, runs in lines:
            _curve(axis, runs, color, label)
        axis.set(title=title, xlabel="generated tokens, thousands", xlim=(0, None), ylim=(0, 100))
        if not told.issuperset(label for label, _, _ in lines):
            axis.legend(frameon=False, fontsize=7)
            told.update(label for label, _, _ in lines)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("held-out accuracy, %")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


def _curve(axis: Any, runs: Runs, color: str, label: str) -> None:
    grid, values = on_a_grid(list(runs.values()))
    means, lows, highs = zip(*(mean_interval(column) for column in 100 * values.T), strict=True)
    axis.plot(grid / 1000, means, color=color, label=f"{label}, {len(values)}", lw=1.4)
    if len(values) > 1:
        axis.fill_between(grid / 1000, lows, highs, color=color, alpha=0.12, linewidth=0)


def on_a_grid(runs: Sequence[Rows], points: int = 60) -> tuple[Any, Any]:
    """Accuracies of runs at common numbers of tokens, between evaluations interpolated: ``[points]``, ``[runs, points]``."""
    curves = [[(row["tokens"], row["accuracy"]) for row in rows if "accuracy" in row] for rows in runs]
    grid = np.linspace(0, min(curve[-1][0] for curve in curves), points)
    return grid, np.array([np.interp(grid, *zip(*curve, strict=True)) for curve in curves])

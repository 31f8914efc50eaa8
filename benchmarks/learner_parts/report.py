"""Reports measurements as named figures, tables and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learner_parts.roofline import print_roofline
from learner_parts.scaling import AXES, Point, describe
from learner_parts.trees import print_trees

TARGETS = {"long_prompt": 3.0, "short_prompt": 1.2}
NAMES = {"response": "response tokens", "group_size": "trajectories of a group, G", "vocabulary": "vocabulary"}


def fields(measured: dict[str, Any]) -> dict[str, Any]:
    """The figures that have targets, under their names; None where they were not measured."""
    shapes = [measured[shape] for shape in TARGETS if shape in measured]
    return {
        "speedup_long_prompt": measured.get("long_prompt", {}).get("speedup"),
        "speedup_short_prompt": measured.get("short_prompt", {}).get("speedup"),
        "peak_memory_ratio": max((shape["peak_memory_ratio"] for shape in shapes), default=None),
        "share_of_limit": min((shape["share_of_limit"] for shape in shapes), default=None),
    }


def print_table(measured: dict[str, Any]) -> None:
    """Everything that was measured, for people."""
    machine = measured["machine"]
    print(f"\n{machine['cpu']}, {machine['usable_cores']} cores, {machine['gpu'] or 'no GPU'}; threads: {machine['threads']}")
    print(f"{machine['model']}, {machine['dtype']}; {machine['versions']}")
    print(f"gradient checkpointing: ours {machine['gradient_checkpointing']}, TRL {bool(machine['gradient_checkpointing'])}")
    if machine["load_before"] > 0.5:
        print(f"load average before the run: {machine['load_before']:.1f}; others were using this machine")
    for shape, target in TARGETS.items():
        if shape in measured:
            _print_shape(shape, measured[shape], target)
    if "scaling" in measured:
        _print_scaling(measured["scaling"])
    if "trees" in measured:
        print_trees(measured["trees"])
    if "roofline" in measured:
        print_roofline(measured["roofline"])


def _print_shape(shape: str, part: dict[str, Any], target: float) -> None:
    print(f"\n{shape}")
    for name in ("seconds", "cpu_seconds", "tokens_per_s", "peak_gib"):
        _line(f"{name}: ours, TRL, limit", ", ".join(f"{value:.2f}" for value in part[name].values()))
    _line(f"speedup (median of pairs; target {target})", f"{part['speedup']:.2f}")
    _line("speedup in processor time", f"{part['speedup_in_cpu_seconds']:.2f}")
    _line("peak memory, ours / TRL (target: below 1)", f"{part['peak_memory_ratio']:.2f}")
    _line("tokens/s, ours / plain cross-entropy", f"{part['share_of_limit']:.2f}")
    differences = f"{part['loss_difference']:.1e}, {part['gradient_norm_difference']:.1e}"
    _line("first step against TRL: loss, gradient norm (relative)", differences)


def _print_scaling(rows: list[dict[str, Any]]) -> None:
    print(f"\nforward and backward of a small model; where nothing else is said {describe(Point())}")
    print(f"    {'':<30} {'size':>8} {'ours s':>8} {'textbook':>9} {'ours MiB':>9} {'textbook':>9}")
    for axis, value, ours, textbook in _pairs(rows):
        times, sizes = [f"{row['seconds']:.2f}" for row in (ours, textbook)], [row["bytes"] / 2**20 for row in (ours, textbook)]
        print(f"    {NAMES[axis]:<30} {value:>8} {times[0]:>8} {times[1]:>9} {sizes[0]:>9.0f} {sizes[1]:>9.0f}")


def _pairs(rows: list[dict[str, Any]]) -> list[tuple[str, int, dict[str, Any], dict[str, Any]]]:
    found = {(row["axis"], row["value"], row["way"]): row for row in rows}
    keys = dict.fromkeys((row["axis"], row["value"]) for row in rows)
    return [(*key, found[*key, "ours"], found[*key, "textbook"]) for key in keys]


def _line(what: str, value: str) -> None:
    print(f"    {what:<58} {value}")


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Seconds above, MiB below, one column per axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure, panels = pyplot.subplots(2, len(AXES), figsize=(10, 5.5), sharey="row", layout="constrained")
    for column, axis in enumerate(AXES):
        for panel, name, scale in zip(panels[:, column], ("seconds", "bytes"), (1, 2**20), strict=True):
            for way, colour in (("ours", "tab:blue"), ("textbook", "tab:gray")):
                chosen = [row for row in rows if row["axis"] == axis and row["way"] == way]
                values = [row[name] / scale for row in chosen]
                panel.plot([row["value"] for row in chosen], values, marker="o", color=colour, label=way)
            panel.set(xscale="log", yscale="log", xlabel=NAMES[axis])
            panel.set_xticks(AXES[axis], [str(value) for value in AXES[axis]])
            panel.xaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.grid(alpha=0.3, which="both")
            panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("seconds, forward + backward")
    panels[1, 0].set_ylabel("MiB above parameters and gradients")
    panels[0, 0].legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)

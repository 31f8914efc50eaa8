"""Reports measurements as named figures, a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL, LARGE = 10_000, 170_000


def fields(measured: dict[str, Any]) -> dict[str, Any]:
    """The figures that have targets, under their names; None where the part or the size was not measured."""
    shares = {run["step_traces"]: run["share_of_trajectory_time"] for run in measured.get("c", {}).get("runs", [])}
    return {
        "ratio_vs_offline": measured.get("a", {}).get("ratio"),
        "ratio_vs_lockstep": measured.get("b", {}).get("ratio"),
        "ratio_vs_lockstep_with_model": measured.get("b", {}).get("with_model", {}).get("ratio"),
        "retrieval_share_10k": shares.get(SMALL),
        "retrieval_share_170k": shares.get(LARGE),
        "hybrid_vs_on_policy": measured.get("d"),
    }


def print_table(measured: dict[str, Any]) -> None:
    """Everything that was measured, for people."""
    machine = measured["machine"]
    device = machine["gpu"] or "no GPU"
    print(f"\n{machine['cpu']}, {machine['usable_cores']} cores, {device}; {machine['model']}, {machine['dtype']}")
    if machine["load_before"] > 0.5:
        print(f"load average before the run: {machine['load_before']:.1f}; others were using this machine")
    for part, printer in (("a", _print_offline), ("b", _print_lockstep), ("c", _print_retrieval), ("d", _print_hybrid)):
        if part in measured:
            printer(measured[part])
    if "e" in measured:
        print("\n(e) tokens/s by trajectories under way")
        for point in measured["e"]:
            ours, offline = point["ours_tokens_per_s"], point["offline_tokens_per_s"]
            _line(f"{point['trajectories']} trajectories", f"ours {ours:.0f}, LLM.generate {offline:.0f}")


def _line(what: str, value: str) -> None:
    print(f"    {what:<58} {value}")


def _print_offline(part: dict[str, Any]) -> None:
    print("\n(a) our loop against LLM.generate, no tools")
    _line("trajectories, generated tokens of each run", f"{part['trajectories']}, {part['generated_tokens']}")
    _line("ours, tokens/s", _numbers(part["ours_tokens_per_s"]))
    _line("LLM.generate, tokens/s", _numbers(part["offline_tokens_per_s"]))
    _line("ratio (median of pairs; target 0.95)", f"{part['ratio']:.3f}")


def _print_lockstep(part: dict[str, Any]) -> None:
    print("\n(b) our schedule against lockstep, tools of random latency, a model of a GPU's pace")
    _print_schedules(part)
    print("\n(b) the same with the model of the other parts")
    _print_schedules(part["with_model"])


def _print_schedules(part: dict[str, Any]) -> None:
    for run in part["runs"]:
        _line("generated tokens, tool calls", f"{run['generated_tokens']}, {run['tool_calls']}")
        _line("  ours: seconds, of which no generation", f"{run['ours_s']:.1f}, {run['ours_idle_s']:.1f}")
        tools = f"{run['lockstep_s']:.1f}, {run['lockstep_tools_s']:.1f} ({run['lockstep_rounds']} rounds)"
        _line("  lockstep: seconds, of which no generation", tools)
        _line("  slowest trajectory's tools alone, s", f"{run['longest_chain_of_tools_s']:.1f}")
        _line("  ratio", f"{run['ratio']:.2f}")
    _line("ratio (median; target 2)", f"{part['ratio']:.2f}")


def _print_retrieval(part: dict[str, Any]) -> None:
    print("\n(c) waiting for step traces")
    for run in part["runs"]:
        _line(f"{run['step_traces']} step traces, index {run['index']}, filled in", f"{run['fill_s']:.0f} s")
        _line("  trajectories, generated tokens", f"{run['trajectories']}, {run['generated_tokens']}")
        _line("  queries, requests, seconds of the run", f"{run['queries']}, {run['requests']}, {run['seconds']:.1f}")
        _line("  share of all trajectories' time (target 0.05)", f"{run['share_of_trajectory_time']:.3f}")
        _line("  share of hybrid trajectories' time", f"{run['share_of_hybrid_trajectory_time']:.3f}")
        _line("  retrieval thread busy / seconds of the run", f"{run['retrieval_busy_share_of_run']:.3f}")
        _line("  waited per query, ms", f"{run['waited_ms_per_query']:.0f}")
        _line("  busy per query, ms", _named(run["ms_per_query"]))
        _line("  per request (a batch of queries), ms", _named(run["ms_per_request"]))


def _print_hybrid(part: dict[str, Any]) -> None:
    print(f"\n(d) hybrid ({part['num_hybrid']} of {part['group_size']}) against on-policy, word problems")
    for name, value in part["on_policy"].items():
        ratio = f"  x {part['ratios'][name]:.2f}" if name in part["ratios"] else ""
        _line(name, f"on-policy {value:.4g}, hybrid {part['hybrid'][name]:.4g}{ratio}")


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def _named(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in values.items())


def plot(measured: dict[str, Any], file: Path) -> None:
    """Part (e) as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    machine, points = measured["machine"], measured["e"]
    sizes = [point["trajectories"] for point in points]
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot(sizes, [p["offline_tokens_per_s"] for p in points], "o--", color="#9db7d5", label="vLLM offline (LLM.generate)")
    axes.plot(sizes, [p["ours_tokens_per_s"] for p in points], "o-", color="#b5432a", label="rollout loop, entropies recorded")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="trajectories under way", ylabel="generated tokens/s", ylim=(0, None))
    axes.set_title(f"{machine['model']}, {machine['dtype']}, {machine['usable_cores']} cores", fontsize=9)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)

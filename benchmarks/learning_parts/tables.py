"""The figures of the study as Markdown tables, and their places in ``docs/learning.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "learning.md"
NAMES = {
    "grpo": "GRPO",
    "rapo": "RAPO",
    "rapo_hidden": "RAPO, no step shown that holds the answer",
    "luffy": "LUFFY: the expert's whole trajectories, trained on",
    "trajectories": "the expert's whole trajectories, retrieved",
}

WITHOUT_RETRIEVAL = ("grpo", "luffy")


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """Name of a place in the page -> table."""
    made = {f"chains-{calls}": _main(of_calls) for calls, of_calls in found["chains"].items()}
    if found["words"]:
        made["words"] = _main(found["words"])
    if found["noise"]:
        made["noise"] = _table(("p", "mean over the budget, %"), [(p, _percent(value)) for p, value in found["noise"].items()])
    if found["ablations"]:
        rows = [
            (f"`{arm}`", _points(one), _p(one), "yes" if one["is_equivalent"] else "no")
            for arm, one in found["ablations"].items()
        ]
        made["ablations"] = _table(("arm", "difference, points", "p (Holm)", "within ±3 points"), rows)
    if found["seconds_to_half"]:
        seconds = [(NAMES[arm], _cost({"median": value})) for arm, value in found["seconds_to_half"].items()]
        made["seconds"] = _table(("arm", "seconds to 50 %"), seconds)
    return made


def _main(found: Mapping[str, Any]) -> str:
    rows = []
    for arm, one in found["arms"].items():
        minus = found.get(f"{arm}_minus_grpo")
        rows.append(
            (
                NAMES[arm],
                _percent(one["mean_accuracy"]),
                "" if minus is None else f"{_points(minus)}, {_p(minus)}",
                f"{100 * one['accuracy_at_the_end']:.1f}",
                f"{100 * one['pass_at_8']:.0f}",
                "; ".join(_cost(one["until_half"][cost]) for cost in ("tokens", "tool_calls")),
                f"{one['diversity']:.2f}",
                f"{100 * one['groups_with_signal']:.0f}",
                f"{100 * one['late']['accuracy_others']:.0f}, {_retrieved(arm, one['late'])}",
            )
        )
    head = (
        "arm", "mean over the budget, %", "minus GRPO, points, p (Holm)", "at the end, %", "pass@8, %",
        "to 50 %: tokens; tool calls", "distinct", "groups with signal, %", "right at the end: own, with retrieval, %",
    )  # fmt: skip
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _retrieved(arm: str, late: Mapping[str, float]) -> str:
    return "none" if arm in WITHOUT_RETRIEVAL else f"{100 * late['accuracy_retrieved']:.0f}"


def _percent(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:.0f} ({100 * value['low']:.0f} to {100 * value['high']:.0f})"


def _points(one: Mapping[str, float]) -> str:
    return f"{100 * one['mean']:+.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f}; {one['higher']} of {one['n']})"


def _p(one: Mapping[str, float]) -> str:
    return f"{one['p_holm']:.3f}" if one["p_holm"] >= 0.001 else "< 0.001"


def _cost(until: Mapping[str, Any]) -> str:
    return "never" if until["median"] is None else f"{until['median']:,.0f}"


def written_into(page: str, made: Mapping[str, str]) -> str:
    """The page with the tables between their marks, ``<!-- table NAME -->`` and ``<!-- end -->``, where it has them."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n{made[match[2]]}\n{match[4]}" if match[2] in made else match[0]

    return re.sub(r"(<!-- table ([\w-]+) -->)(.*?)(<!-- end -->)", table, page, flags=re.DOTALL)

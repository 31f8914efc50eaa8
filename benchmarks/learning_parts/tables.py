"""The figures of the study as Markdown tables, and their places in the pages of ``docs`` that tell them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learning_parts.arms import CONTROLS
from learning_parts.equal_tables import equal_tables
from learning_parts.pilot import pilot_table
from learning_parts.results import COSTS
from learning_parts.statistics import mean_interval

PAGE = Path(__file__).resolve().parents[2] / "docs" / "learning.md"
OTHERS = ("docs/credit.md", "docs/rollout.md", "benchmarks/RESULTS.md", "benchmarks/LEARNING.md")
PAGES = (PAGE, *(PAGE.parents[1] / page for page in OTHERS))
NAMES = {
    "grpo": "GRPO",
    "rapo": "RAPO",
    "rapo_hidden": "RAPO, no step shown that holds the answer",
    "luffy": "LUFFY: the expert's whole trajectories, trained on",
    "trajectories": "the expert's whole trajectories, retrieved",
}

WAITING = ("grpo", "rapo", "rapo_hidden")  # arms that learn from their own right trajectories alone
WITHOUT_RETRIEVAL = ("grpo", "luffy")


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """Name of a place in the page -> table."""
    made = {f"chains-{calls}": _main(of_calls) for calls, of_calls in found["chains"].items()}
    made |= equal_tables(found.get("equal", {}), found.get("pairs", {}))
    made |= {name: table(found[of]) for name, (of, table) in _WHOLE.items() if found.get(of)}
    if found["words"]:
        made["words"] = _main(found["words"])
    if found["words"] and found["words"]["credit"]:
        made["words-credit"] = _credit(found["words"]["credit"])
    if found["noise"]:
        made["noise"] = _table(("p", "mean over the budget, %"), [(p, _percent(value)) for p, value in found["noise"].items()])
    if found["ablations"]:
        rows = [
            (f"`{arm}`", _points(one), _p(one), "yes" if one["is_equivalent"] else "no")
            for arm, one in found["ablations"].items()
        ]
        made["ablations"] = _table(("arm", "difference, points", "p (Holm)", "within ±3 points"), rows)
    if found["seconds_alone"]:
        seconds = [
            (NAMES[arm], *(_cost({"median": one.get(arm)}) for one in (found["seconds_to_half"], found["seconds_alone"])))
            for arm in found["seconds_alone"]
        ]
        made["seconds"] = _table(("arm", "all seeds, two runs at a time", "seeds 0 to 2, one at a time"), seconds)
    return made


def _packaged(found: Mapping[str, Any]) -> str:
    """Held-out accuracy of the packaged jobs, seed by seed."""
    curves: Mapping[str, Mapping[str, list[float]]] = found["curves"]
    seeds = sorted({int(seed) for of_job in curves.values() for seed in of_job})
    rows = [
        (str(seed), *(", ".join(f"{100 * one:.1f}" for one in of_job.get(str(seed), ())) for of_job in curves.values()))
        for seed in seeds
    ]
    return _table(("seed", *(f"`{job}`, %" for job in curves)), rows)


HABITS = {
    "right, where the question begins with `careful:`, which no question of the task does": ("careful",),
    "takes the next step behind one step of its own, behind two": ("goes_on_1", "goes_on_2"),
    "makes use of a fitting step of another solver behind one step of its own, behind two": ("reads_1", "reads_2"),
    "takes over an unfitting one": ("takes_over_1",),
}


def _task(habits: Mapping[str, Mapping[str, float]]) -> str:
    """Tabulate the habits of each base policy, in percent of 200 held-out chains."""
    rows = [
        (what, *(", ".join(f"{100 * one[name]:.3g}" for name in names) for one in habits.values()))
        for what, names in HABITS.items()
    ]
    return _table(("policy, %", *(name.removeprefix("policy-") for name in habits)), rows)


def _same_rate(found: Mapping[str, Any]) -> str:
    rows = [("GRPO with RAPO's learning rate", _percent(found["mean_accuracy"]), "")]
    rows += [(f"{NAMES[arm]}, minus this GRPO", "", _points(found[f"{arm}_minus"])) for arm in ("rapo", "rapo_hidden")]
    return _table(("two calculations", "mean over the budget, %", "difference, points"), rows)


def figures(found: Mapping[str, Any]) -> dict[str, str]:
    """Name of a place within a line of a page -> what came out, in a few words."""
    tasks = {**found["chains"], "words": found["words"]}
    policies = {f"policies-{task}": _by_policy(one["by_policy"]) for task, one in tasks.items() if one}
    if stale := found["staleness"]:
        waits, goes_on, difference = stale["two_engines"], stale["stale_2"], stale["difference"]
        policies["staleness"] = (
            f"{_percent(goes_on)} against {_percent(waits)} %, {_points(difference)} points, {goes_on['n']} seeds"
        )
    calls = {f"calls-{arm}": _calls(one) for arm, one in found["branching"].items() if "mean" in one}
    return (
        policies
        | calls
        | {
            f"credit-{arm}": ", ".join(f"{100 * one[f'minus_{base}']['mean']:+.0f} to {name}" for base, name in _BASES.items())
            for arm, one in found["credit"].items()
        }
    )


def _by_policy(means: list[float]) -> str:
    mean, low, high = (round(100 * value) for value in mean_interval(means))
    return f"{', '.join(f'{100 * one:+.0f}' for one in means)} points; over policies {mean:+d} ({low} to {high})"


def _calls(one: Mapping[str, Any]) -> str:
    of = f"of {one['seeds']} runs"
    return (
        f"{one['mean']:.2f} of GRPO's ({one['low']:.2f} to {one['high']:.2f}, the {one['n']} pairs where both get there; "
        f"{one['reached']} {of} do, of GRPO's {one['grpo_reached']})"
    )


_BASES = {"rapo": "RAPO", "grpo": "GRPO"}


def _credit(found: Mapping[str, Any]) -> str:
    rows = []
    for arm, one in found.items():
        control = f"{_minus(one, 'control')} (`{CONTROLS[arm]}`)" if "minus_control" in one else ""
        rows.append((f"`{arm}`", _percent(one["mean_accuracy"]), _minus(one, "rapo"), _minus(one, "grpo"), control))
    differences = ("minus RAPO, points, p (Holm)", "minus GRPO, points, p (Holm)", "minus its control, points, p (Holm)")
    return _table(("arm", "mean over the budget, %", *differences), rows)


def _minus(one: Mapping[str, Any], base: str) -> str:
    return f"{_points(one[f'minus_{base}'])}, {_p(one[f'minus_{base}'])}"


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
                "; ".join(_cost(one["until_half"][cost]) for cost in COSTS),
                f"{one['diversity']:.2f}",
                f"{100 * one['groups_with_signal']:.0f}",
                f"{100 * one['late']['accuracy_others']:.0f}, {_retrieved(arm, one['late'])}",
            )
        )
    head = (
        "arm", "mean over the budget, %", "minus GRPO, points, p (Holm)", "at the end, %", "pass@8, %",
        "to 50 %: tokens; tool calls; seconds", "distinct", "groups with signal, %", "right at the end: own, with retrieval, %",
    )  # fmt: skip
    return _table(head, rows)


def _first(chains: Mapping[str, Any]) -> str:
    """When chance finds the first right trajectory."""
    rows = []
    for calls, of_calls in sorted(chains.items()):
        for arm in (arm for arm in WAITING if arm in of_calls["arms"]):
            one = of_calls["arms"][arm]
            first = one["first_success"]
            runs = f"{first['reached']} of {one['mean_accuracy']['n']}"
            rows.append((calls, NAMES[arm], runs, _cost(first), f"{1000 * first['rate']:.1f}"))
    head = (
        "calculations",
        "arm",
        "runs with a right trajectory in training",
        "first in iteration, median",
        "of 1,000 until then",
    )
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _retrieved(arm: str, late: Mapping[str, float]) -> str:
    return "none" if arm in WITHOUT_RETRIEVAL else f"{100 * late['accuracy_retrieved']:.0f}"


def _percent(value: Mapping[str, float]) -> str:
    mean, low, high = (round(100 * value[name]) for name in ("mean", "low", "high"))  # whole numbers have no -0
    return f"{mean} ({low} to {high})"


def _points(one: Mapping[str, float]) -> str:
    return f"{100 * one['mean']:+.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f}; {one['higher']} of {one['n']})"


def _p(one: Mapping[str, float]) -> str:
    return f"{one['p_holm']:.3f}" if one["p_holm"] >= 0.001 else "< 0.001"


def _cost(until: Mapping[str, Any]) -> str:
    return "never" if until["median"] is None else f"{until['median']:,.0f}"


# table -> of which figures, and what makes it
_WHOLE = {
    "first": ("chains", _first),
    "task": ("habits", _task),
    "packaged": ("packaged", _packaged),
    "credit": ("credit", _credit),
    "same_rate": ("same_rate", _same_rate),
    "pilot": ("pilot", pilot_table),
}


def written_into(page: str, made: Mapping[str, str], within: Mapping[str, str]) -> str:
    """The page with what was made between its marks, where it has them.

    Args:
        page: with ``<!-- table NAME -->`` and ``<!-- figure NAME -->``, each up to an ``<!-- end -->``.
        made: tables, by name; they stand on lines of their own.
        within: figures, by name; they stand within a line.
    """

    def text(match: re.Match[str]) -> str:
        mark, kind, name, _, end = match.groups()
        if name not in (found := made if kind == "table" else within):
            return match[0]
        return f"{mark}\n{found[name]}\n{end}" if kind == "table" else f"{mark}{found[name]}{end}"

    return re.sub(r"(<!-- (table|figure) ([\w.-]+) -->)(.*?)(<!-- end -->)", text, page, flags=re.DOTALL)

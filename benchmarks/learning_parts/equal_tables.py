"""The second study, and the packaged jobs side by side, as Markdown tables: each way to use the traces, and what decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "grpo": "GRPO, no traces",
    "grpo_explores": "GRPO at temperature 1.2, groups twice as large",
    "sft_grpo": "fine-tuning, then GRPO",
    "luffy": "LUFFY",
    "luffy_grpo": "LUFFY's members in GRPO's objective",
    "rapo": "RAPO",
    "rapo_hidden": "RAPO, no step shown that holds the answer",
    "steps": "single steps with the expert's own, then GRPO with its trajectories",
    "sft_steps": "fine-tuning, then that",
    "sft_grpo_other": "traces of other questions: fine-tuning, then GRPO",
    "rapo_other": "traces of other questions: RAPO",
    "steps_other": "traces of other questions: single steps, then GRPO",
    "sft_steps_other": "traces of other questions: fine-tuning, single steps, then GRPO",
}
DECIDING = {
    "best_minus_luffy": "fine-tuning and single steps, minus LUFFY",
    "steps_minus_luffy": "single steps, minus LUFFY",
    "steps_minus_luffy_grpo": "single steps, minus LUFFY's members in GRPO's objective",
    "best_minus_sft_grpo": "traces of other questions: fine-tuning and single steps, minus fine-tuning alone",
}


def equal_tables(equal: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, str]:
    """Make tables, by the name of their place in a page; none of what has not been run."""
    made = {f"equal-{calls}": _arms(of_calls) for calls, of_calls in equal.items()}
    if any(name in of_calls for of_calls in equal.values() for name in DECIDING):
        made["equal-deciding"] = _deciding(equal)
    if "rapo_minus_grpo" in pairs:
        made["pairs"] = _pairs(pairs)
    return made


def _arms(of_calls: Mapping[str, Any]) -> str:
    rows = []
    for arm, one in of_calls["arms"].items():
        minus = of_calls["minus"].get(arm)
        half = f"{one['reached_half']} of {one['n']}"
        tokens = "" if one["tokens_to_half"] is None else f", {one['tokens_to_half']:,.0f}"
        rows.append(
            (
                NAMES[arm],
                _percent(one),
                "" if minus is None else f"{_points(minus)}, {_p(minus['p_holm'])}",
                f"{100 * one['accuracy']:.0f}",
                half + tokens,
                f"{one['train_s']:.0f}",
            )
        )
    base = "minus GRPO, or with others' traces minus fine-tuning then GRPO; p (Holm)"
    half = "runs that get to 50 %, tokens until there (median)"
    return _table(("arm", "mean over the budget, %", base, "at the end, %", half, "training seconds"), rows)


def _deciding(equal: Mapping[str, Any]) -> str:
    rows = [
        (
            DECIDING[name],
            calls,
            _points(of_calls[name]),
            ", ".join(f"{100 * mean:+.0f}" for mean in of_calls[name]["by_policy"].values()),
            _p(of_calls[name]["logrank_p"]),
            of_calls[name]["verdict"],
        )
        for name in DECIDING
        for calls, of_calls in equal.items()
        if name in of_calls
    ]
    head = ("comparison", "calculations", "points", "of each base policy", "tokens to 50 %: log-rank p", "by the plan")
    return _table(head, rows)


def _pairs(found: Mapping[str, Any]) -> str:
    ratio = found["seconds_ratio"]
    rows = [
        (
            "pairs; the least of `rapo_math`, its mean at the end, %",
            f"{ratio['n']}; {_hundred(found['lowest'])}, {_hundred(found['mean'])}",
        ),
        (
            "`rapo_math` minus `grpo_math` at the end, points; p",
            f"{_points(found['rapo_minus_grpo'])}; {_p(found['rapo_minus_grpo']['p'])}",
        ),
        ("ratio of seconds", f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"),
    ]
    return _table(("the packaged jobs side by side", ""), rows)


def _hundred(share: float) -> str:
    return f"{100 * share:.1f}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, tuple("---" for _ in head), *rows))


def _percent(value: Mapping[str, float]) -> str:
    mean, low, high = (round(100 * value[name]) for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _points(one: Mapping[str, float]) -> str:
    return f"{100 * one['mean']:+.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f}; {one['higher']} of {one['n']})"


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"

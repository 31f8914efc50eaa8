"""Terms of the outcome reward, which are added up. algorithm.md sections 9, 10.

Score, format, tool calls -> `reward_terms` -> `info["reward_terms"]`, whose sum is the reward
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from rapo_rllib.protocol.steps import answer_ok, format_ok, last_box
from rapo_rllib.rewards.score import Episode, EpisodeStep, Score
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.settings.schedule import check_schedule, value_at
from rapo_rllib.validation import MOST, require

TERMS = ("correct", "format", "bad_format", "called_tool", "all_tools", "tool_error", "steps")


def _check_weight(name: str, value: Any) -> None:
    check_schedule(name, value, low=-MOST)


_WEIGHT: dict[str, Any] = {"rule": "a number or a schedule", "check": _check_weight}


@dataclass(frozen=True)
class RewardOptions(Knobs):
    """Keys of ``env_config.reward``: what each term weighs, and when it counts."""

    where: ClassVar[str] = "env_config.reward."

    preset: str | None = knob(None, "name that sets the weights not given: `released_code` or `r1_searcher`")
    correct: Any = knob(1.0, "weight of the scorer's score, which is in [0, 1]", **_WEIGHT)
    format: Any = knob(0.0, "added for a good format", **_WEIGHT)
    bad_format: Any = knob(0.0, "added for a bad one, or when there is no answer", **_WEIGHT)
    called_tool: Any = knob(0.0, "added when any tool was called", **_WEIGHT)
    all_tools: Any = knob(0.0, "added when the answer is right and every tool was called", **_WEIGHT)
    all_tools_for: Literal["correct", "partial"] = knob(
        "correct", "answers that `all_tools` is added for: `correct` ones, or `partial`: all with a score above 0"
    )
    tool_error: Any = knob(0.0, "added for every tool call that failed", **_WEIGHT)
    steps: Any = knob(1.0, "weight of the scorer's rewards of single steps (`Score.steps`)", **_WEIGHT)
    strict_format: bool = knob(False, "an answer in bad format earns nothing but bad_format (and tool_error)")
    format_check: Literal["final_step", "whole_text"] = knob(
        "final_step", "text whose format is checked: the `final_step`, or the `whole_text` (released code)"
    )

    def at(self, env_steps: int | None) -> RewardOptions:
        """Return the weights in force after ``env_steps``; None: the last values of schedules."""
        values: dict[str, Any] = {name: value_at(getattr(self, name), env_steps) for name in TERMS}
        return replace(self, **values)


def reward_terms(
    score: Score,
    options: RewardOptions,
    *,
    format_ok: bool,
    all_tools: bool,
    tool_errors: int = 0,
    called_tool: bool = False,
) -> dict[str, float]:
    """Compute the reward terms of one episode.

    Args:
        score: of its answer. Named terms of a score take the place of the one term `correct`.
        options: weights, each a number (:meth:`RewardOptions.at`).
        format_ok: whether its format is good; False without an answer.
        all_tools: whether every tool was called, and there are tools.
        tool_errors: calls that failed.
        called_tool: whether any tool was called.
    """
    counts = format_ok or not options.strict_format
    earned = score.terms or {"correct": score.value}
    right = score.correct or (options.all_tools_for == "partial" and score.value > 0)
    return {
        **{name: options.correct * value if counts else 0.0 for name, value in earned.items()},
        "format": options.format if format_ok else 0.0,
        "bad_format": 0.0 if format_ok else options.bad_format,
        "called_tool": options.called_tool if called_tool else 0.0,
        "all_tools": options.all_tools if counts and right and all_tools else 0.0,
        "tool_error": options.tool_error * tool_errors,
        **({"steps": options.steps * math.fsum(score.steps)} if score.steps else {}),
    }


def step_rewards(score: Score, options: RewardOptions, steps: Sequence[EpisodeStep]) -> list[float]:
    """Compute the part of the terms that single steps earned: the scorer's ``steps``, and ``tool_error`` for failed calls.

    Args:
        score: of the episode.
        options: weights.
        steps: of the episode; several may belong to one generated step.

    Returns:
        One reward per generated step.

    Raises:
        ValueError: the scorer's rewards are not one per step.
    """
    if score.steps and len(score.steps) != len(steps):
        raise ValueError(f"a score has {len(score.steps)} rewards of steps, of an episode of {len(steps)} steps")
    earned = [0.0] * (max((step.turn for step in steps), default=-1) + 1)
    for step, reward in zip(steps, score.steps or [0.0] * len(steps), strict=True):
        earned[step.turn] += options.steps * reward + (options.tool_error if step.tool_error is not None else 0.0)
    return earned


def well_formed(episode: Episode, check: str, tool_tags: Iterable[str], *, require_boxed: bool) -> bool:
    r"""Return whether the episode passes ``check``, the reward's ``format_check``: on its final step, or on the whole text.

    ``whole_text`` has the rules of the released code: thought tags in pairs, at least one; one pair of answer tags with a
    ``\boxed{...}`` inside; after every tool's opening tag come its closing tag and a result, in this order.
    """
    if episode.settings.format == "native":  # tags play no part: only the answer itself is checked
        return answer_ok(episode.answer_text, require_boxed=require_boxed)
    if check == "final_step":
        return format_ok(episode.steps[-1].text, episode.settings, require_boxed=require_boxed)
    text, settings = episode.text, episode.settings
    return (
        text.count(f"<{settings.think_tag}>") == text.count(f"</{settings.think_tag}>") > 0
        and _answered(text, settings.answer_tag, require_boxed)
        and all(_calls_have_results(text, tag, settings.result_tag) for tag in tool_tags)
    )


def _answered(text: str, tag: str, require_boxed: bool) -> bool:
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return False
    start, end = text.find(opening), text.find(closing)
    return start < end and (not require_boxed or last_box(text[start:end]) is not None)


def _calls_have_results(text: str, tag: str, result_tag: str) -> bool:
    position = 0
    while (start := text.find(f"<{tag}>", position)) >= 0:
        for part in (f"</{tag}>", f"<{result_tag}>", f"</{result_tag}>"):
            position = text.find(part, start)
            if position < 0:
                return False
            start = position
    return True


# A preset sets the scorer as well as the weights; values that the user gives take precedence over both.
REWARD_PRESETS: dict[str, dict[str, Any]] = {
    # token F1 of the boxed answer, for maths too; +0.1 for any F1 above 0 if all tools were called; only -1 for bad format
    "released_code": {
        "scorer": "qa",
        "reward": {
            "correct": 1.0,
            "all_tools": 0.1,
            "all_tools_for": "partial",
            "bad_format": -1.0,
            "strict_format": True,
            "format_check": "whole_text",
        },
    },
    # arXiv 2503.05592: first a good format and a search, 0.5 each; then token F1, and -2 for a bad format. The paper
    # changes stages after 350 questions of 16 trajectories each: about 20,000 env steps
    "r1_searcher": {
        "scorer": "qa",
        "reward": {
            "format": [[0, 0.5], [20000, 0.5], [20001, 0.0]],
            "called_tool": [[0, 0.5], [20000, 0.5], [20001, 0.0]],
            "correct": [[0, 0.0], [20000, 0.0], [20001, 1.0]],
            "bad_format": [[0, 0.0], [20000, 0.0], [20001, -2.0]],
        },
    },
}


def with_reward_preset(env_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill up ``env_config`` with the values of the preset that its ``reward`` names; values already given take precedence.

    Raises:
        ValueError: there is no such preset.
    """
    reward = env_config.get("reward")
    if isinstance(reward, str):
        reward = {"preset": reward}
    if not isinstance(reward, Mapping) or reward.get("preset") is None:
        return env_config
    name = reward["preset"]
    known = isinstance(name, str) and name in REWARD_PRESETS
    require(known, "reward.preset", name, f"must be one of {', '.join(REWARD_PRESETS)}, or null")
    preset = REWARD_PRESETS[name]
    return {**preset, **env_config, "reward": {**preset["reward"], **reward}}

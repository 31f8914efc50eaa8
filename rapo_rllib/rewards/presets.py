"""Presets of the reward: ``env_config.reward: released_code``, or ``{preset: released_code, bad_format: -0.5}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.validation import require

# The scorer belongs to a preset as much as the weights do: both lie beneath what the user gives.
REWARD_PRESETS: dict[str, dict[str, Any]] = {
    # token F1 of the boxed answer, for maths too; +0.1 for any F1 above 0 if all tools were called; -1 for bad format alone
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
    """``env_config`` over the values of the preset that its ``reward`` names.

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

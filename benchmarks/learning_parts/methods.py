"""What is compared: every arm is the same job with some keys changed. algorithm.md sections 10 and 11, docs/ablations.md."""

from __future__ import annotations

from typing import Any

BASELINE = "grpo"  # what the main arms are paired with

ARMS: dict[str, dict[str, Any]] = {
    "grpo": {"preset": "grpo", "clip_high": 0.28},
    "rapo": {},
    "rapo_hidden": {"step_trace_buffer": {"filter": {"hide_answers": True}}},  # no step trace that shows the answer
    "rapo_other": {"step_trace_buffer": {"filter": {"question": "other"}}},  # no step of the very question
    "luffy": {"preset": "luffy"},  # whole trajectories of the expert, trained on
    "trajectories": {"preset": "trajectory_retrieval"},  # whole trajectories of the expert, shown
    "arpo": {
        "preset": "grpo",
        "clip_high": 0.28,
        "branching": {"initial": 4, "branches": 2, "rule": "coin", "base_prob": 0.5, "entropy_weight": 0.2},
    },
    **{f"noise_{p}": {"retrieval_noise": p} for p in (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)},
    "oracle": {"retrieval_noise": 0.5, "retrieval_quality": "oracle", "retrieval_timing": "none"},
    "z_less_on_policy": {"retrieval_baseline": "on_policy"},
    "a_0": {"retrieval_advantage_weight": 0.0},
    "a_0.4": {"retrieval_advantage_weight": 0.4},
    "removed": {"shown_steps": "removed"},  # what was written behind a shown step is trained without it, too
    "imitated": {"shown_steps": "imitated"},  # the shown step is trained on, as the policy's own
    "own": {"shown_steps": "own"},  # both
    "m_0": {"importance_shaping_weight": 0.0},
    "m_1": {"importance_shaping_weight": 1.0, "shaping_order": "after_clip"},  # before it, it would pass the clip by itself
}
MAIN = ("grpo", "rapo", "rapo_hidden", "luffy", "trajectories")
NOISE = {0.0: "rapo", **{p: f"noise_{p}" for p in (0.2, 0.4, 0.6, 0.8, 1.0)}}  # the paper's six values
# arm -> what it is an ablation of, paired
ABLATIONS = {
    "noise_0.5": "rapo",
    "oracle": "noise_0.5",
    "z_less_on_policy": "rapo",
    "a_0": "rapo",
    "a_0.4": "rapo",
    "m_0": "rapo",
    "m_1": "rapo",
}
RATED = ("grpo", "rapo", "luffy", "trajectories")  # those whose learning rate is chosen; the others have RAPO's, ARPO GRPO's


def rated(arm: str) -> str:
    """The arm whose learning rate an arm has."""
    return arm if arm in RATED else "grpo" if arm == "arpo" else "rapo"

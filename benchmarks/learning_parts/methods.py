"""What is compared: every arm is the same job with some keys changed. algorithm.md sections 10 and 11."""

from __future__ import annotations

from typing import Any

BASELINE = "grpo"  # what the main arms are paired with

_GRPO = {"preset": "grpo", "clip_high": 0.28}
_BRANCHING = {"initial": 4, "branches": 2, "rule": "coin", "base_prob": 0.5, "entropy_weight": 0.2}
_UNSURE = {"initial": 2, "branches": 4, "rule": "threshold", "threshold": 0.5, "entropy_weight": 1.0, "entropy_tokens": 1}
_PAID = {"scorer": "learning_parts.chains:paid_steps", "reward": {"steps": 0.2}}  # right values on the way earn 0.2 each
_OTHERS = {"traces_of_others": True}
_FIRST = [[0, 1.0], [1500, 1.0], [1501, 0.0]]  # single steps alone, for about a quarter of the budget
_LONG = [[0, 1.0], [3000, 1.0], [3001, 0.0]]
_IMITATES = {"num_trajectories": 400, "shown_share": 0.0}  # all of the expert's trajectories, once
# R1-Searcher's two stages: first the way, then the answer alone. 2,000 env steps are about a third of the budget
_STAGES = {
    "scorer": "learning_parts.chains:paid_steps",
    "reward": {"steps": [[0, 0.2], [2000, 0.2], [2001, 0.0]], "correct": [[0, 0.0], [2000, 0.0], [2001, 1.0]]},
}

ARMS: dict[str, dict[str, Any]] = {
    "grpo": _GRPO,
    "grpo_same_rate": _GRPO,  # with RAPO's learning rate
    "rapo": {},
    "rapo_hidden": {"step_trace_buffer": {"filter": {"hide_answers": True}}},  # no step trace that shows the answer
    "luffy": {"preset": "luffy"},  # whole trajectories of the expert, trained on
    "trajectories": {"preset": "trajectory_retrieval"},  # whole trajectories of the expert, shown
    "arpo": {**_GRPO, "branching": _BRANCHING},
    "arpo_unsure": {**_GRPO, "branching": _UNSURE},  # forks where the next token is less sure than the first one was
    **{f"noise_{p}": {"retrieval_noise": p} for p in (0.2, 0.4, 0.5, 0.6, 0.8, 1.0)},
    "oracle": {"retrieval_noise": 0.5, "retrieval_quality": "oracle", "retrieval_timing": "none"},
    "a_0": {"retrieval_advantage_weight": 0.0},
    "a_0.4": {"retrieval_advantage_weight": 0.4},
    "imitated": {"shown_steps": "imitated"},  # the shown step is trained on, as the policy's own
    "own": {"shown_steps": "own"},  # both
    "grpo_steps": {**_GRPO, "env_config": _PAID},  # steps are paid, and the trajectory is credited with the sum
    "two_stages": {**_GRPO, "env_config": _STAGES},
    "rapo_steps": {"env_config": _PAID},
    "gigpo": {"preset": "gigpo", "clip_high": 0.28},
    "gigpo_branches": {"preset": "gigpo", "clip_high": 0.28, "branching": _BRANCHING},
    "two_engines": {"num_env_runners": 2},  # RAPO on two engines in processes of their own, each update waits for its rollouts
    "stale_2": {"num_env_runners": 2, "max_staleness": 2},  # they go on beside updates
    "m_0": {"importance_shaping_weight": 0.0},
    "m_1": {"importance_shaping_weight": 1.0, "shaping_order": "after_clip"},  # before it, it would pass the clip by itself
}
# What else can be made of an expert's steps: looked at with seeds that are reported nowhere else, to choose what to study
PILOT: dict[str, dict[str, Any]] = {
    **{arm: ARMS[arm] for arm in ("grpo", "rapo", "luffy", "imitated", "own")},
    "starts": {"expert_start_share": 0.75},  # and hybrids in what begins at the beginning
    "starts_alone": {**_GRPO, "expert_start_share": 0.75},
    "single_steps": {**_GRPO, "expert_step_share": 0.5},
    "steps_first": {**_GRPO, "expert_step_share": _FIRST},
    "steps_and_starts": {**_GRPO, "expert_step_share": 0.25, "expert_start_share": 0.5},
    "failed": {"hybrid_groups": "failed"},
    "failed_by_kind": {"hybrid_groups": "failed", "advantage_baseline": "kind"},
    "by_success": {"retrieval_by_success": True},
    "by_success_by_kind": {"retrieval_by_success": True, "advantage_baseline": "kind"},
    "starts_by_success": {"expert_start_share": 0.75, "retrieval_by_success": True},
    "starts_imitated": {"expert_start_share": 0.75, "shown_steps": "imitated"},
    "imitated_by_success": {"retrieval_by_success": True, "shown_steps": "imitated"},
    "luffy_starts": {"preset": "luffy", "expert_start_share": 0.5},
    "step_luffy": {"preset": "luffy", "expert_step_share": 0.5},  # in single steps, too, the expert is a member of the group
    "step_luffy_first": {"preset": "luffy", "expert_step_share": _FIRST},
    "step_luffy_first_grpo": {**_GRPO, "expert_step_share": _FIRST, "off_policy_trajectories": 1},
    "step_luffy_other": {"preset": "luffy", "expert_step_share": 0.5, "env_config": _OTHERS},
    "step_luffy_first_other": {"preset": "luffy", "expert_step_share": _FIRST, "env_config": _OTHERS},
    "step_luffy_long": {"preset": "luffy", "expert_step_share": _LONG},
    "step_luffy_long_other": {"preset": "luffy", "expert_step_share": _LONG, "env_config": _OTHERS},
    "sft_step_luffy": {"preset": "luffy", "expert_step_share": _FIRST, "warm_start": _IMITATES},
    "sft_step_luffy_other": {"preset": "luffy", "expert_step_share": _FIRST, "warm_start": _IMITATES, "env_config": _OTHERS},
    "sft_luffy": {"preset": "luffy", "warm_start": _IMITATES},
    "steps_first_other": {**_GRPO, "expert_step_share": _FIRST, "env_config": _OTHERS},
    "grpo_explores": {**_GRPO, "temperature": 1.2, "group_size": 16, "questions_per_step": 8},  # as many trajectories
    "sft_grpo": {**_GRPO, "warm_start": _IMITATES},  # what one would do with traces without any of this
    # the same where the expert has solved other questions
    "rapo_other": {"env_config": _OTHERS},
    "single_steps_other": {**_GRPO, "expert_step_share": 0.5, "env_config": _OTHERS},
    "sft_grpo_other": {**_GRPO, "warm_start": _IMITATES, "env_config": _OTHERS},
}
_STEPS = {**_GRPO, "expert_step_share": _FIRST, "off_policy_trajectories": 1}
# The second study, beside arms of the first and of the pilot
EQUAL: dict[str, dict[str, Any]] = {
    "luffy_grpo": {**_GRPO, "off_policy_trajectories": 1},  # LUFFY's members in the objective that `steps` has
    "steps": _STEPS,  # single steps first, the expert's among them; then whole trajectories
    "sft_steps": {**_STEPS, "warm_start": _IMITATES},
    "steps_other": {**_STEPS, "env_config": _OTHERS},
    "sft_steps_other": {**_STEPS, "warm_start": _IMITATES, "env_config": _OTHERS},
}
ARMS |= PILOT | EQUAL
MAIN = ("grpo", "rapo", "rapo_hidden", "luffy", "trajectories")
NOISE = {0.0: "rapo", **{p: f"noise_{p}" for p in (0.2, 0.4, 0.6, 0.8, 1.0)}}  # the paper's six values
# arm -> what it is an ablation of, paired
ABLATIONS = {
    "noise_0.5": "rapo",
    "oracle": "noise_0.5",
    "a_0": "rapo",
    "a_0.4": "rapo",
    "m_0": "rapo",
    "m_1": "rapo",
}
# What is learned from a retrieved step, and who is credited: each paired with RAPO and with GRPO. arm -> seeds, from 0 on
REPORTED = {
    **dict.fromkeys(("imitated", "own"), 21),
    **dict.fromkeys(("grpo_steps", "grpo_step_credit", "turn_reached", "turn_group", "two_stages"), 10),
    **dict.fromkeys(("rapo_steps", "rapo_step_credit"), 10),
    **dict.fromkeys(("gigpo", "gigpo_branches", "arpo", "arpo_unsure", "exgrpo", "grpo_again", "exgrpo_again"), 10),
    **{"removed": 21, "retrieval_credit": 10},
}
CREDIT = {arm: seeds for arm, seeds in REPORTED.items() if arm in ARMS}
# measured, and gone from the package since, as are the others of REPORTED; all stay in the tables and in their tests' families
GONE_ABLATIONS = {"z_less_on_policy": "rapo"}
# arm of REPORTED -> the arm that has the same reward or the same rollouts, and the plain credit
CONTROLS = {
    "grpo_step_credit": "grpo_steps",
    "turn_reached": "grpo_steps",
    "turn_group": "grpo_steps",
    "two_stages": "grpo_steps",
    "rapo_step_credit": "rapo_steps",
    "gigpo_branches": "arpo",
    "arpo_unsure": "arpo",
    "exgrpo_again": "grpo_again",
}
BRANCHING = ("arpo", "arpo_unsure", "gigpo_branches")  # of CREDIT: those that share what branches have in common
STALE = ("stale_2", "two_engines")  # an arm, and what it is compared with: does it learn as much when nothing waits?
SAME_RATE = "grpo_same_rate"  # a check at two calculations, where GRPO's own rate, chosen at three, may be too high
RATED = ("grpo", "rapo", "luffy", "trajectories")  # those whose learning rate is chosen


def rated(arm: str) -> str:
    """The arm whose learning rate an arm has: RAPO's if it is RAPO with other keys, else GRPO's."""
    if arm == SAME_RATE:
        return "rapo"
    return arm if arm in RATED else "grpo" if "preset" in ARMS[arm] else "rapo"

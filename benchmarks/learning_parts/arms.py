"""Names of what the studies compared, by the raw results that they left."""

from __future__ import annotations

BASELINE = "grpo"  # what the main arms are paired with
MAIN = ("grpo", "rapo", "rapo_hidden", "luffy", "trajectories")
NOISE = {0.0: "rapo", **{p: f"noise_{p}" for p in (0.2, 0.4, 0.6, 0.8, 1.0)}}  # the paper's six values
# arm -> what it is an ablation of, paired; Holm over all
ABLATIONS = {
    "noise_0.5": "rapo",
    "oracle": "noise_0.5",
    "a_0": "rapo",
    "a_0.4": "rapo",
    "m_0": "rapo",
    "m_1": "rapo",
    "z_less_on_policy": "rapo",
}
# What is learned from a retrieved step, and who is credited: each paired with RAPO and with GRPO, a family each
CREDIT = (
    *("imitated", "own", "grpo_steps", "grpo_step_credit", "turn_reached", "turn_group", "two_stages"),
    *("rapo_steps", "rapo_step_credit", "gigpo", "gigpo_branches", "arpo", "arpo_unsure"),
    *("exgrpo", "grpo_again", "exgrpo_again", "removed", "retrieval_credit"),
)
# arm of CREDIT -> the arm that has the same reward or the same rollouts, and the plain credit
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
STALE = ("stale_2", "two_engines")  # rollouts beside updates, and rollouts that updates wait for
SAME_RATE = "grpo_same_rate"  # a check at two calculations, where GRPO's own rate, chosen at three, may be too high
CALLS = (2, 3, 4)  # calculations of a chain: an experiment of its own each
PRIMARY = 3  # where noise and ablations are looked at
POLICIES = 3  # base policies; seed s begins with base policy s modulo POLICIES
TARGET = 0.5  # held-out accuracy whose cost is reported
EQUIVALENT = 0.03  # a difference within this is none
WORD_CREDIT = ("own",)  # of CREDIT, that which was tried with a language model

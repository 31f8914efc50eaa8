"""What is compared: every method is the same job with some keys changed. ALGORITHM sections 10 and 11, docs/ablations.md."""

from __future__ import annotations

from typing import Any

BASELINE = "grpo"  # what differences are paired with

METHODS: dict[str, dict[str, Any]] = {
    "rapo": {},
    "grpo": {"preset": "grpo", "clip_high": 0.28},
    "arpo": {
        "preset": "grpo",
        "clip_high": 0.28,
        "branching": {"initial": 4, "branches": 2, "rule": "coin", "base_prob": 0.5, "entropy_weight": 0.2},
    },
    "luffy": {"preset": "luffy"},  # whole trajectories of the expert, trained on
    "trajectory_retrieval": {"preset": "trajectory_retrieval"},  # whole trajectories of the expert, shown
    "rapo_falling": {"retrieval_prob": [[0, 0.5], [10_000, 0.0]]},  # by env steps, of which a run has some 14,000
    "noise_0.5": {"retrieval_noise": 0.5},
    "noise_1": {"retrieval_noise": 1.0},
    "without_rpo": {"preset": "without_rpo"},
    "without_rr": {"preset": "without_rr"},
    "without_ris": {"preset": "without_ris"},
    "without_rq": {"preset": "without_rq"},
    "without_rt": {"preset": "without_rt"},
    "entropy_increase": {"preset": "entropy_increase"},
    "low_entropy": {"preset": "low_entropy"},
}
SHORT = ("rapo", "grpo")  # of the short form
MAIN = ("rapo", "grpo", "arpo", "luffy", "trajectory_retrieval")  # of the picture of methods
NOISE = {"rapo": 0.0, "noise_0.5": 0.5, "noise_1": 1.0}  # p of the noise sweep

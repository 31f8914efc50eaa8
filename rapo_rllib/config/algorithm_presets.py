"""The algorithms that RAPO is compared with, each one name for the parts of its objective (docs/algorithm.md section 11).

    preset: gspo    --presets.py-->    importance_level: sequence, clip_low: 3.0e-4, ...

All of them sample on-policy only (``num_hybrid: 0``). With ``num_hybrid`` given beside the preset the trajectories retrieve,
and RAPO's retrieval reward and importance shaping join the algorithm's own objective.
"""

from __future__ import annotations

from typing import Any

_GRPO: dict[str, Any] = {
    "num_hybrid": 0,
    "importance_level": "token",
    "clip_mode": "hard",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "loss_aggregation": "trajectory",
    "normalize_std": True,
}

ALGORITHM_PRESETS: dict[str, dict[str, Any]] = {
    # arXiv 2402.03300, without its KL term (kl_coeff: 0.04 there)
    "grpo": _GRPO,
    # arXiv 2503.14476: clip-higher, token mean, dynamic sampling, soft overlong punishment over 4,096 of 20,480 tokens
    "dapo": {
        **_GRPO,
        "clip_high": 0.28,
        "loss_aggregation": "token",
        "dynamic_sampling": True,
        "overlong_buffer_share": 0.2,
    },
    # arXiv 2503.20783: neither the group's deviation nor the response's own length divides
    "dr_grpo": {**_GRPO, "loss_aggregation": "constant", "normalize_std": False},
    # arXiv 2507.18071. Its clip range is narrower than the mismatch of engine and learner, hence the learner's own π_old, and
    # than RAPO's importance shaping, which comes after the clip therefore
    "gspo": {
        **_GRPO,
        "importance_level": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "old_logprobs": "learner",
        "shaping_order": "after_clip",
    },
    # arXiv 2508.07629
    "gppo": {**_GRPO, "clip_mode": "gradient_preserving", "clip_high": 0.28, "loss_aggregation": "token"},
    # arXiv 2504.14945: an expert's trajectory in each group, its tokens shaped and not clipped; the rest as in Dr. GRPO
    "luffy": {
        **_GRPO,
        "loss_aggregation": "constant",
        "normalize_std": False,
        "off_policy_trajectories": 1,
        "off_policy_source": "expert",
        "off_policy_shaping": 0.1,
    },
    # arXiv 2507.07451 (RLEP): own successes again, with their recorded probabilities; clip-higher and token mean
    "replay": {
        **_GRPO,
        "clip_high": 0.28,
        "loss_aggregation": "token",
        "off_policy_trajectories": 1,
        "off_policy_source": "replay",
        "off_policy_shaping": None,
    },
    # arXiv 2505.10978: beside the trajectory's advantage that of steps from the same state; the discount is its code's
    "gigpo": {**_GRPO, "credit": "gigpo", "step_discount": 0.95},
    # arXiv 2503.05592: two stages of reward (rewards/terms.py). The paper's objective is REINFORCE++; here it is GRPO's
    "r1_searcher": {**_GRPO, "env_config": {"reward": {"preset": "r1_searcher"}}},
}

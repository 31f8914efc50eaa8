"""The equations of RAPO and its baselines as pure functions: algorithm.md sections 5 to 8, 10 and 11, readable beside it.

    entropy (eq. 2) --> retrieval_reward (eq. 5-7) --> advantages (eq. 9, 10) <-- overlong (DAPO)
                                                            |
    aggregation (weights of eq. 11) ------------------------+--> loss (eq. 11) --> the learner
    importance (eq. 8; GSPO), clipping (GPPO), off_policy (LUFFY) --^

Torch and layer 0 only. Settings arrive as arguments; nothing here knows of Ray, an engine or a file.
"""

from rapo_rllib.objective.advantages import (
    combined_advantages,
    has_signal,
    outcome_advantages,
    retrieval_advantages,
    shared_token_advantages,
)
from rapo_rllib.objective.aggregation import LOSS_AGGREGATIONS, aggregation_weight
from rapo_rllib.objective.branching import branch_probability, normalized_entropy_change, opening_entropy
from rapo_rllib.objective.clipping import CLIP_MODES, clipped_objective, gradient_preserving_objective
from rapo_rllib.objective.entropy import STEP_REDUCTIONS, step_entropy, token_entropy, top_entropy
from rapo_rllib.objective.importance import (
    IMPORTANCE_LEVELS,
    importance_ratio,
    ratio_at_level,
    sequence_ratio,
    sequence_token_ratio,
    shaped_ratio,
    shaping_factor,
    trajectory_mean,
    truncated_importance_weight,
)
from rapo_rllib.objective.loss import LossInputs, LossOutputs, kl_estimate, policy_loss
from rapo_rllib.objective.loss_metrics import LossMetrics
from rapo_rllib.objective.off_policy import policy_shaping
from rapo_rllib.objective.overlong import overlong_punishment
from rapo_rllib.objective.retrieval_reward import (
    RETRIEVAL_QUALITIES,
    RETRIEVAL_TIMINGS,
    entropy_change,
    retrieval_entropies,
    retrieval_quality,
    retrieval_reward,
    retrieval_timing,
    trajectory_retrieval_reward,
)

__all__ = [
    "CLIP_MODES",
    "IMPORTANCE_LEVELS",
    "LOSS_AGGREGATIONS",
    "RETRIEVAL_QUALITIES",
    "RETRIEVAL_TIMINGS",
    "STEP_REDUCTIONS",
    "LossInputs",
    "LossMetrics",
    "LossOutputs",
    "aggregation_weight",
    "branch_probability",
    "clipped_objective",
    "combined_advantages",
    "entropy_change",
    "gradient_preserving_objective",
    "has_signal",
    "importance_ratio",
    "kl_estimate",
    "normalized_entropy_change",
    "opening_entropy",
    "outcome_advantages",
    "overlong_punishment",
    "policy_loss",
    "policy_shaping",
    "ratio_at_level",
    "retrieval_advantages",
    "retrieval_entropies",
    "retrieval_quality",
    "retrieval_reward",
    "retrieval_timing",
    "sequence_ratio",
    "sequence_token_ratio",
    "shaped_ratio",
    "shaping_factor",
    "shared_token_advantages",
    "step_entropy",
    "token_entropy",
    "top_entropy",
    "trajectory_mean",
    "trajectory_retrieval_reward",
    "truncated_importance_weight",
]

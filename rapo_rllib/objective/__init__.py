"""The equations of RAPO as pure functions: ALGORITHM sections 5 to 8, readable beside it.

    entropy (eq. 2) --> retrieval_reward (eq. 5-7) --> advantages (eq. 9, 10) --+
    aggregation (weights of eq. 11) ---------------------------------------------+--> loss (eq. 11) --> the learner
    importance (eq. 8) ----------------------------------------------------------+

Torch and layer 0 only. Settings arrive as arguments; nothing here knows of Ray, an engine or a file.
"""

from rapo_rllib.objective.advantages import combined_advantages, has_signal, outcome_advantages, retrieval_advantages
from rapo_rllib.objective.aggregation import LOSS_AGGREGATIONS, aggregation_weight
from rapo_rllib.objective.entropy import step_entropy, token_entropy
from rapo_rllib.objective.importance import importance_ratio, shaped_ratio, truncated_importance_weight
from rapo_rllib.objective.loss import LossInputs, LossOutputs, clipped_objective, kl_estimate, policy_loss
from rapo_rllib.objective.loss_metrics import LossMetrics
from rapo_rllib.objective.retrieval_reward import (
    entropy_change,
    retrieval_entropies,
    retrieval_quality,
    retrieval_reward,
    trajectory_retrieval_reward,
)

__all__ = [
    "LOSS_AGGREGATIONS",
    "LossInputs",
    "LossMetrics",
    "LossOutputs",
    "aggregation_weight",
    "clipped_objective",
    "combined_advantages",
    "entropy_change",
    "has_signal",
    "importance_ratio",
    "kl_estimate",
    "outcome_advantages",
    "policy_loss",
    "retrieval_advantages",
    "retrieval_entropies",
    "retrieval_quality",
    "retrieval_reward",
    "shaped_ratio",
    "step_entropy",
    "token_entropy",
    "trajectory_retrieval_reward",
    "truncated_importance_weight",
]

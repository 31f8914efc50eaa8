"""The training step: sample groups, move the policy, confirm the new weights; and the config that describes it."""

from rapo_rllib.lazy import lazy_names

__getattr__ = lazy_names(__name__, {"RAPO": "rapo_rllib.algorithm.algorithm", "RAPOConfig": "rapo_rllib.algorithm.config"})

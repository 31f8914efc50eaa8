"""Held-out questions while training, and models on benchmarks."""

from rapo_rllib.lazy import lazy_names

__getattr__ = lazy_names(__name__, {"evaluate_on_env_runners": "rapo_rllib.evaluation.held_out"})

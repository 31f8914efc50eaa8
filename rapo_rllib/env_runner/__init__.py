"""Rollouts as RLlib has them: the env runner, questions to several of them, and what a rollout reports."""

from rapo_rllib.lazy import lazy_names

__getattr__ = lazy_names(__name__, {"RAPOEnvRunner": "rapo_rllib.env_runner.env_runner"})

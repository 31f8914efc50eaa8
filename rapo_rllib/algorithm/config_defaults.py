"""What RLlib's own keys are set to for RAPO: a text environment, an engine that samples, and weights that are confirmed."""

from __future__ import annotations

from typing import Any


def set_rllib_defaults(config: Any) -> None:
    """Set RLlib's keys on a fresh ``RAPOConfig``."""
    from rapo_rllib.env_runner.env_runner import RAPOEnvRunner
    from rapo_rllib.envs.text_space import AnyText
    from rapo_rllib.evaluation.held_out import evaluate_on_env_runners

    config.env_runner_cls = RAPOEnvRunner
    config.observation_space = AnyText()
    config.action_space = AnyText()
    config.num_env_runners = 0
    config.create_local_env_runner = True
    config.add_default_connectors_to_env_to_module_pipeline = False
    config.add_default_connectors_to_module_to_env_pipeline = False
    config.add_default_connectors_to_learner_pipeline = False
    # weights and counters go through weights/sync.py, which confirms them; there are no connector states
    config.merge_env_runner_states = False
    config.broadcast_env_runner_states = False
    config._dont_auto_sync_env_runner_states = True
    config.custom_evaluation_function = evaluate_on_env_runners
    config.restart_failed_env_runners = True
    config.delay_between_env_runner_restarts_s = 1.0
    config.env_runner_health_probe_timeout_s = 120.0
    config.sample_timeout_s = 24 * 3600.0
    config.evaluation_sample_timeout_s = 24 * 3600.0
    config.min_time_s_per_iteration = 0
    config.train_batch_size_per_learner = 1

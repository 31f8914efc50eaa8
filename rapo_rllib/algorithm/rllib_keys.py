"""The keys of RLlib's ``AlgorithmConfig`` that RAPO or RLlib reads in a training of RAPO; every other key is refused.

RLlib keeps the settings of all its algorithms in one config, and most of them mean nothing to an engine that writes texts. A
key that is not read is refused as soon as its value differs from ``RAPOConfig``'s own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID

READ = (
    *("env", "env_config", "observation_space", "action_space", "seed"),
    *("num_env_runners", "create_local_env_runner", "num_gpus_per_env_runner", "sample_timeout_s"),
    *("num_learners", "num_gpus_per_learner", "lr", "grad_clip", "num_epochs"),
    *("callbacks_class", "callbacks_on_environment_created", "callbacks_on_episode_created", "callbacks_on_episode_start"),
    *("callbacks_on_episode_step", "callbacks_on_episode_end", "callbacks_on_sample_end"),
    *("callbacks_on_evaluate_start", "callbacks_on_evaluate_end"),
    *("evaluation_interval", "evaluation_duration", "evaluation_config", "evaluation_num_env_runners"),
    *("evaluation_sample_timeout_s", "custom_evaluation_function", "in_evaluation"),
    # read by RLlib's own code in a training of RAPO: resources, restarts, iterations, checkpoints, the learner's device
    *("algo_class", "env_runner_cls", "log_level"),
    *("placement_strategy", "num_cpus_for_main_process", "custom_resources_for_main_process"),
    *("num_cpus_per_env_runner", "custom_resources_per_env_runner", "validate_env_runners_after_construction"),
    *("max_requests_in_flight_per_env_runner", "restart_failed_env_runners", "ignore_env_runner_failures"),
    *("max_num_env_runner_restarts", "delay_between_env_runner_restarts_s", "env_runner_health_probe_timeout_s"),
    "num_consecutive_env_runner_failures_tolerance",
    *("num_cpus_per_learner", "custom_resources_per_learner", "max_requests_in_flight_per_learner", "local_gpu_idx"),
    *("callbacks_on_algorithm_init", "callbacks_on_env_runners_recreated", "callbacks_on_checkpoint_loaded"),
    "callbacks_on_train_result",
    *("learner_config_dict", "_learner_class", "_rl_module_spec"),  # for subclasses of RAPO's own learner and module
    *("stats_cls_lookup", "_use_msgpack_checkpoints", "_validate_config", "_is_frozen", "_dont_auto_sync_env_runner_states"),
)

REFUSED = sorted(vars(AlgorithmConfig()).keys() - set(READ))
_ADVICE = "a training of RAPO does not read this key of RLlib's; leave it out, or give one of RAPO's (docs/config.md)"
_SET_FOR_EVALUATION = ("batch_mode", "rollout_fragment_length")  # by RLlib, in the config of an evaluation


@lru_cache(maxsize=1)
def _defaults() -> dict[str, Any]:
    from rapo_rllib.algorithm.config import RAPOConfig

    return dict(vars(RAPOConfig()))


def check_rllib_keys(config: AlgorithmConfig) -> None:
    """Refuse RLlib keys that are set but would be ignored.

    Raises:
        ValueError: naming the key and its value.
    """
    skipped: Collection[str] = _SET_FOR_EVALUATION if config.in_evaluation else ()
    for key in REFUSED:
        if key not in skipped and not _is_default(config, key):
            raise ValueError(f"{key.removeprefix('_')} = {getattr(config, key)!r}: {_ADVICE}")
    if isinstance(config.evaluation_config, Mapping):
        for key, value in config.evaluation_config.items():
            if key in REFUSED or f"_{key}" in REFUSED:
                raise ValueError(f"evaluation_config.{key} = {value!r}: {_ADVICE}")


def _is_default(config: AlgorithmConfig, key: str) -> bool:
    if key == "policies":  # RLlib puts spaces into it
        return set(config.policies) == {DEFAULT_MODULE_ID}
    if key == "simple_optimizer" and config.simple_optimizer is False:  # RLlib's own validation sets it
        return True
    default, value = _defaults().get(key), getattr(config, key, None)
    return bool(value is default or value == default)

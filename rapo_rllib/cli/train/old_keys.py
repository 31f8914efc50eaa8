"""Config and stop keys of RLlib's old API stack: translated where there is a new name, refused where there is none.

Every function returns what it translated to, with one note per key for the terminal.
"""

from __future__ import annotations

from typing import Any

from rapo_rllib.monitoring.metrics_flat import flattened

_NEW_NAMES = {
    "num_rollout_workers": "num_env_runners",
    "num_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner",
    "num_cpus_per_worker": "num_cpus_per_env_runner",
    "num_gpus_per_worker": "num_gpus_per_env_runner",
    "custom_resources_per_worker": "custom_resources_per_env_runner",
    "num_cpus_for_driver": "num_cpus_for_main_process",
    "num_cpus_for_local_worker": "num_cpus_for_main_process",
    "num_learner_workers": "num_learners",
    "num_cpus_per_learner_worker": "num_cpus_per_learner",
    "num_gpus_per_learner_worker": "num_gpus_per_learner",
    "evaluation_num_workers": "evaluation_num_env_runners",
    "evaluation_num_episodes": "evaluation_duration",
    "custom_eval_function": "custom_evaluation_function",
    "sgd_minibatch_size": "minibatch_size",
    "num_sgd_iter": "num_epochs",
    "lr_schedule": "lr",
    "entropy_coeff_schedule": "entropy_coeff",
    "model_config": "_model_config",
    "min_iter_time_s": "min_time_s_per_iteration",
    "min_time_s_per_reporting": "min_time_s_per_iteration",
    "timesteps_per_iteration": "min_sample_timesteps_per_iteration",
    "min_sample_timesteps_per_reporting": "min_sample_timesteps_per_iteration",
    "min_train_timesteps_per_reporting": "min_train_timesteps_per_iteration",
    "metrics_smoothing_episodes": "metrics_num_episodes_for_smoothing",
    "collect_metrics_timeout": "metrics_episode_collection_timeout_s",
    "ignore_worker_failures": "ignore_env_runner_failures",
    "recreate_failed_workers": "restart_failed_env_runners",
    "recreate_failed_env_runners": "restart_failed_env_runners",
    "max_num_worker_restarts": "max_num_env_runner_restarts",
    "delay_between_worker_restarts_s": "delay_between_env_runner_restarts_s",
    "num_consecutive_worker_failures_tolerance": "num_consecutive_env_runner_failures_tolerance",
    "worker_health_probe_timeout_s": "env_runner_health_probe_timeout_s",
    "worker_restore_timeout_s": "env_runner_restore_timeout_s",
    "validate_workers_after_construction": "validate_env_runners_after_construction",
}
_PREFERRED = ("model_config",)  # not old: RLlib's own name for what it keeps in a private attribute

_REPLAY = "put it into replay_buffer_config: {type: ..., capacity: ...}"
_TORCH_ONLY = "RLlib's new API stack knows torch only; remove it"
_WITHOUT_SUCCESSOR = {
    "observation_filter": "use config.env_runners(env_to_module_connector=...) with MeanStdFilter in a Python file",
    "exploration_config": "remove it: the RLModule explores (explore: true); for DQN set epsilon: [[0, 1.0], [10000, 0.02]]",
    "tf_session_args": _TORCH_ONLY,
    "local_tf_session_args": _TORCH_ONLY,
    "eager_tracing": _TORCH_ONLY,
    "eager_max_retraces": _TORCH_ONLY,
    "enable_tf1_exec_eagerly": _TORCH_ONLY,
    "simple_optimizer": "remove it",
    "optimizer": "remove it; override Learner.configure_optimizers_for_module in a Python file",
    "preprocessor_pref": "use an env_to_module_connector in a Python file",
    "sample_collector": "use a connector in a Python file",
    "remote_worker_envs": "set gym_env_vectorize_mode: async",
    "remote_env_batch_wait_ms": "set gym_env_vectorize_mode: async",
    "monitor": "record videos with a callback in a Python file",
    "render_env": "record videos with a callback in a Python file",
    "buffer_size": _REPLAY,
    "prioritized_replay": _REPLAY,
    "replay_mode": _REPLAY,
    "learning_starts": "set num_steps_sampled_before_learning_starts",
    "input_evaluation": "set off_policy_estimation_methods",
    "env_task_fn": "change the task in a callback in a Python file",
    "worker_cls": "set env_runner_cls",
}
_SCHEDULES = ("lr_schedule", "entropy_coeff_schedule")
_NO_EFFECT: tuple[Any, ...] = (None, False, {}, [], "NoFilter")

_STACK_SWITCHES = (
    "enable_rl_module_and_learner",
    "enable_env_runner_and_connector_v2",
    "_enable_new_api_stack",
    "_enable_rl_module_api",
    "_enable_learner_api",
)

_RESULTS = {
    "episode_reward_mean": "env_runners/episode_return_mean",
    "episode_reward_max": "env_runners/episode_return_max",
    "episode_reward_min": "env_runners/episode_return_min",
    "episode_len_mean": "env_runners/episode_len_mean",
    "sampler_results/episode_reward_mean": "env_runners/episode_return_mean",
    "evaluation/episode_reward_mean": "evaluation/env_runners/episode_return_mean",
    "episodes_total": "env_runners/num_episodes_lifetime",
    "timesteps_total": "num_env_steps_sampled_lifetime",
    "num_env_steps_sampled": "num_env_steps_sampled_lifetime",
}


def translated_config(config: dict[str, Any], algorithm: str) -> tuple[dict[str, Any], list[str]]:
    """``config`` with new names, and notes.

    Raises:
        ValueError: a key of the old stack has no successor, or stands beside its successor.
    """
    result: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in config.items():
        for new, new_value in _translated(key, value, config, algorithm).items():
            if new != key and (new in config or new in result):
                raise ValueError(f"config.{key} is the old name of {new}, which is given too: remove {key}")
            result[new] = new_value
            if new != key and key not in _PREFERRED:
                shown = "model_config" if new == "_model_config" else new
                notes.append(f"config.{key} is now called {shown}")
    return result, notes


def _translated(key: str, value: Any, config: dict[str, Any], algorithm: str) -> dict[str, Any]:
    if _means_nothing_now(key, value):
        return {}
    if algorithm != "RAPO":  # which has a `model` of its own, and batches of questions
        if key == "model":
            return {"_model_config": _network(value)}
        if key == "train_batch_size":
            return {"train_batch_size_per_learner": _per_learner(value, _num_learners(config))}
    if key == "num_gpus":
        return _learner_gpus(value)
    return {_NEW_NAMES.get(key, key): value}


def _means_nothing_now(key: str, value: Any) -> bool:
    """Whether an old key can go because its value asks for what is always so today; raises if it asks for more."""
    if key in ("framework", "framework_str"):
        if value not in ("torch", None):
            raise ValueError(f"config.{key} = {value!r}: {_TORCH_ONLY}")
        return True
    if key in _STACK_SWITCHES:
        if value is False:
            raise ValueError(f"config.{key} = false: the old API stack is not supported; remove it")
        return True
    if key in _WITHOUT_SUCCESSOR:
        if value not in _NO_EFFECT:
            raise ValueError(f"config.{key} is of RLlib's old API stack: {_WITHOUT_SUCCESSOR[key]}")
        return True
    return key in _SCHEDULES and value is None


def _network(options: Any) -> Any:
    """Old ``model`` options that are also ``DefaultModelConfig``'s."""
    from dataclasses import fields

    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    known = {field.name for field in fields(DefaultModelConfig)}
    for key in options if isinstance(options, dict) else ():
        if key not in known and key != "grid_search":
            raise ValueError(
                f"config.model.{key} is of RLlib's old API stack: remove it, or build the network as an RLModule in a Python "
                f"file. Still known: {', '.join(sorted(k for k in known if 'initializer' not in k))}"
            )
    return options


def _per_learner(total: Any, num_learners: Any) -> Any:
    """The old ``train_batch_size`` was that of all learners together."""
    if isinstance(total, dict) and "grid_search" in total:
        return {"grid_search": [_per_learner(one, num_learners) for one in total["grid_search"]]}
    if not isinstance(total, int) or not isinstance(num_learners, int):
        raise ValueError(f"config.train_batch_size = {total!r}: give train_batch_size_per_learner instead, a whole number")
    return max(total // num_learners, 1)


def _num_learners(config: dict[str, Any]) -> Any:
    """Learners that share a batch, by new and old keys."""
    named = config.get("num_learners") or config.get("num_learner_workers")
    return named or _learner_gpus(config.get("num_gpus")).get("num_learners", 1)


def _learner_gpus(value: Any) -> dict[str, Any]:
    """The old ``num_gpus`` were all the GPUs that updates ran on."""
    if isinstance(value, int) and value > 1:
        return {"num_learners": value, "num_gpus_per_learner": 1}
    return {"num_gpus_per_learner": value}


def translated_stop(stop: dict[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Stop criteria, flat and under the names of the new stack's results, and notes.

    Raises:
        ValueError: a limit is not a number.
    """
    result: dict[str, float] = {}
    notes = []
    for key, value in flattened(stop).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"stop.{key} = {value!r}: must be a number, reached when the result is at least that")
        result[translated_result(key)] = value
        if translated_result(key) != key:
            notes.append(f"stop.{key} is now called {translated_result(key)}")
    return result, notes


def translated_result(name: str) -> str:
    """A result's name on the new stack."""
    return _RESULTS.get(name, name)

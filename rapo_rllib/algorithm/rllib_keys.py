"""The keys of RLlib's ``AlgorithmConfig`` that RAPO or RLlib reads in a training of RAPO; every other one is refused.

RLlib keeps the settings of all its algorithms in one config, and most of them mean nothing to an engine that writes texts. A
key that nobody reads is refused as soon as it has another value than ``RAPOConfig``'s own, and the message says what to use
instead, where there is something.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID

READ_BY_RAPO = (
    *("env", "env_config", "observation_space", "action_space", "seed"),
    *("num_env_runners", "create_local_env_runner", "num_gpus_per_env_runner", "sample_timeout_s"),
    *("num_learners", "num_gpus_per_learner", "lr", "grad_clip", "num_epochs"),
    *("callbacks_class", "callbacks_on_environment_created", "callbacks_on_episode_created", "callbacks_on_episode_start"),
    *("callbacks_on_episode_step", "callbacks_on_episode_end", "callbacks_on_sample_end"),
    *("callbacks_on_evaluate_start", "callbacks_on_evaluate_end"),
    *("evaluation_interval", "evaluation_duration", "evaluation_config", "evaluation_num_env_runners"),
    *("evaluation_sample_timeout_s", "custom_evaluation_function", "in_evaluation"),
)
READ_BY_RLLIB = (  # on the way that RAPO takes through it: resources, restarts, iterations, checkpoints, the learner's device
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

_UNREAD = "nothing in a training of RAPO reads it; leave it out"
_BATCH = "a batch is questions_per_step groups of group_size trajectories, cut into num_minibatches: set these"
_OWN_ROLLOUT = "RAPO samples whole trajectories: set questions_per_step, group_size and engine.max_num_seqs"
_CONNECTORS = "RAPO has no connectors: what the policy is shown is up to `protocol` and the environment"
_EVALUATION = (
    "an evaluation asks the first evaluation_duration test questions once: leave it out, or set custom_evaluation_function to "
    "None for RLlib's own evaluation, which reads it"
)
STOCK_EVALUATION = ("evaluation_duration_unit", "evaluation_force_reset_envs_before_iteration")

_USE_INSTEAD: dict[str, tuple[str, ...]] = {
    "outcomes are not discounted: each token of a trajectory has its advantage; leave it out": ("gamma",),
    "the gradient's global norm is clipped, at grad_clip; leave it out": ("grad_clip_by",),
    _BATCH: ("train_batch_size", "_train_batch_size_per_learner", "minibatch_size", "shuffle_batch_per_epoch"),
    _OWN_ROLLOUT: ("num_envs_per_env_runner", "gym_env_vectorize_mode", "rollout_fragment_length", "batch_mode"),
    "actions and observations of RAPO are texts; leave it out": (
        *("clip_rewards", "normalize_actions", "clip_actions", "observation_filter", "compress_observations", "render_env"),
    ),
    _CONNECTORS: (
        *("_env_to_module_connector", "add_default_connectors_to_env_to_module_pipeline"),
        *("_module_to_env_connector", "add_default_connectors_to_module_to_env_pipeline"),
        *("_learner_connector", "add_default_connectors_to_learner_pipeline"),
    ),
    "set it by training(model={...}), or `model:` in a job file": ("model", "_model_config"),
    "AdamW is set by lr, weight_decay and adam_betas": ("optimizer", "_torch_lr_scheduler_classes"),
    "bfloat16 needs no scaling of the loss: set model.dtype or model.autocast_dtype": ("_torch_grad_scaler_class",),
    "steps that are not finite are skipped: set max_consecutive_nan": ("torch_skip_nan_gradients",),
    "learners sum their gradients without DDP: set learner_parallelism": ("torch_ddp_kwargs",),
    "the learner's passes are not compiled; set model.attention or model.gradient_checkpointing to change them": (
        *("torch_compile_learner", "torch_compile_worker"),
    ),
    "RAPO trains with PyTorch; leave it out": ("framework_str",),
    "set num_gpus_per_env_runner and num_gpus_per_learner": ("num_gpus",),
    "the policy explores by sampling: set temperature": ("explore", "exploration_config"),
    "RAPO trains one policy; leave it out": (
        *("policies", "policy_mapping_fn", "policies_to_train", "algorithm_config_overrides_per_module"),
    ),
    "RAPO samples its own data; give trajectories of others by off_policy_trajectories, step traces by step_trace_buffer": (
        *("input_", "offline_data_class", "input_read_method", "dataset_num_iters_per_learner"),
    ),
    "trajectories are written by `transcripts`: set transcripts to true": (
        *("output", "output_config", "output_max_file_size", "output_compress_columns", "output_max_rows_per_file"),
        *("output_write_remaining_data", "output_write_method", "output_write_method_kwargs", "output_write_episodes"),
        *("output_filesystem", "output_filesystem_kwargs"),
    ),
    _EVALUATION: STOCK_EVALUATION,
    "evaluation needs weights that stand still: set it to false": ("evaluation_parallel_to_training",),
    "an iteration is one training step: set questions_per_step for longer ones": (
        *("min_time_s_per_iteration", "min_train_timesteps_per_iteration", "min_sample_timesteps_per_iteration"),
    ),
    "set export_with_checkpoints: true": ("export_native_model_files", "checkpoint_trainable_policies_only"),
}
_ADVICE = {key: advice for advice, keys in _USE_INSTEAD.items() for key in keys}
_UNREAD_KEYS = sorted(vars(AlgorithmConfig()).keys() - {*READ_BY_RAPO, *READ_BY_RLLIB})
REFUSED: dict[str, str] = {key: _ADVICE.get(key, _UNREAD) for key in _UNREAD_KEYS}
_SET_FOR_EVALUATION = ("batch_mode", "rollout_fragment_length")  # by RLlib, in the config of an evaluation

NEVER_CALLED = (  # methods of an RLlibCallback
    *("on_evaluate_offline_start", "on_evaluate_offline_end", "on_offline_eval_runners_recreated"),
)


@lru_cache(maxsize=1)
def _defaults() -> dict[str, Any]:
    from rapo_rllib.algorithm.config import RAPOConfig

    return dict(vars(RAPOConfig()))


def check_rllib_keys(config: AlgorithmConfig) -> None:
    """Refuse what of RLlib's own keys and callbacks would be ignored.

    Raises:
        ValueError: naming the key, its value and what to use instead.
    """
    skipped: Collection[str] = _SET_FOR_EVALUATION if config.in_evaluation else ()
    if config.custom_evaluation_function is None:
        skipped = (*skipped, *STOCK_EVALUATION)
    for key, advice in REFUSED.items():
        if key not in skipped and not _is_default(config, key):
            raise ValueError(f"{key.removeprefix('_')} = {getattr(config, key)!r}: {advice}")
    if isinstance(config.evaluation_config, Mapping):
        for key in config.evaluation_config:
            if (own := key if key in REFUSED else f"_{key}") in REFUSED:
                raise ValueError(f"evaluation_config.{key} = {config.evaluation_config[key]!r}: {REFUSED[own]}")
    _check_callbacks(config.callbacks_class)


def check_rllibs_evaluation(config: AlgorithmConfig) -> None:
    """Refuse RLlib's own evaluation where it would find no env runner to ask."""
    if config.custom_evaluation_function is not None or not config.evaluation_interval or config.in_evaluation:
        return
    if config.num_env_runners and not config.evaluation_num_env_runners:
        raise ValueError(
            f"custom_evaluation_function = None with num_env_runners = {config.num_env_runners} and "
            "evaluation_num_env_runners = 0: RLlib's own evaluation asks evaluation env runners; set "
            "evaluation_num_env_runners, or leave custom_evaluation_function out"
        )


def _is_default(config: AlgorithmConfig, key: str) -> bool:
    if key == "policies":  # RLlib puts spaces into it
        return set(config.policies) == {DEFAULT_MODULE_ID}
    if key == "simple_optimizer" and config.simple_optimizer is False:  # RLlib's own validation sets it
        return True
    default, value = _defaults().get(key), getattr(config, key, None)
    return bool(value is default or value == default)


def _check_callbacks(given: Any) -> None:
    """Refuse callback classes with methods that nobody would call."""
    for one in given if isinstance(given, list | tuple) else [given]:
        made: Any = getattr(one, "func", one)  # of a functools.partial
        for name in NEVER_CALLED:
            if getattr(made, name, None) not in (None, getattr(RLlibCallback, name)):
                raise ValueError(
                    f"callbacks_class: {made.__name__}.{name} would never be called: {REFUSED[f'callbacks_{name}']}"
                )

"""Names that TRL and verl have for our keys, and what to write in their place: docs/from_verl_or_trl.md as data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

_TRL = {
    "peft_config": "model.lora.rank, model.lora.alpha, model.lora.target_modules",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "train_dataset": "env_config.dataset",
    "eval_dataset": "env_config.test_dataset",
    "per_device_train_batch_size": "questions_per_step",
    "gradient_accumulation_steps": "questions_per_step",
    "num_generations": "group_size",
    "max_prompt_length": "max_prompt_tokens",
    "max_completion_length": "max_response_tokens",
    "max_tool_calling_iterations": "max_tool_calls",
    "tools": "env_config.tools",
    "environment_factory": "env",
    "reward_funcs": "env_config.scorer",
    "reward_weights": "env_config.scorer",
    "loss_type": "preset, loss_aggregation",
    "scale_rewards": "normalize_std",
    "importance_sampling_level": "importance_level",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "delta": "dual_clip",
    "beta": "kl_coeff",
    "num_iterations": "num_epochs",
    "steps_per_generation": "num_minibatches",
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "vllm_gpu_memory_utilization": "engine.gpu_memory_utilization",
    "vllm_tensor_parallel_size": "engine.tensor_parallel_size",
    "vllm_enable_sleep_mode": "engine.sleep",
    "vllm_importance_sampling_correction": "old_logprobs",
    "vllm_importance_sampling_clip_max": "importance_cap",
    "mask_truncated_completions": "mask_truncated",
    "eval_steps": "evaluation_interval",
    "log_completions": "transcripts",
    "save_steps": "checkpoint_frequency, in checkpoint_config beside config",
    "output_dir": "storage_path, beside config",
}
_VERL = {
    "actor_rollout_ref": {
        "model.path": "model.name_or_path",
        "model.lora_rank": "model.lora.rank",
        "model.lora_alpha": "model.lora.alpha",
        "model.target_modules": "model.lora.target_modules",
        "model.enable_gradient_checkpointing": "model.gradient_checkpointing",
        "rollout.n": "group_size",
        "rollout.temperature": "temperature",
        "rollout.multi_turn.max_assistant_turns": "max_tool_calls, max_steps",
        "rollout.multi_turn.tool_config_path": "env_config.tools",
        "rollout.agent.agent_loop_config_path": "env",
        "rollout.gpu_memory_utilization": "engine.gpu_memory_utilization",
        "rollout.tensor_model_parallel_size": "engine.tensor_parallel_size",
        "rollout.max_num_seqs": "engine.max_num_seqs",
        "rollout.free_cache_engine": "engine.sleep",
        "actor.loss_agg_mode": "loss_aggregation",
        "actor.policy_loss.loss_mode": "importance_level",
        "actor.clip_ratio_low": "clip_low",
        "actor.clip_ratio_high": "clip_high",
        "actor.clip_ratio_c": "dual_clip",
        "actor.kl_loss_coef": "kl_coeff",
        "actor.ppo_epochs": "num_epochs",
        "actor.ppo_mini_batch_size": "num_minibatches",
        "actor.ppo_max_token_len_per_gpu": "max_tokens_per_micro_batch",
        "actor.optim.lr": "lr",
        "actor.optim.weight_decay": "weight_decay",
        "actor.grad_clip": "grad_clip",
        "actor.strategy": "learner_parallelism",
    },
    "algorithm": {"adv_estimator": "preset", "norm_adv_by_std_in_grpo": "normalize_std"},
    "custom_reward_function": {"path": "env_config.scorer"},
    "data": {
        "train_files": "env_config.dataset",
        "val_files": "env_config.test_dataset",
        "train_batch_size": "questions_per_step",
        "max_prompt_length": "max_prompt_tokens",
        "max_response_length": "max_response_tokens",
    },
    "trainer": {
        "nnodes": "num_env_runners, num_learners",
        "n_gpus_per_node": "num_gpus_per_env_runner, num_gpus_per_learner",
        "test_freq": "evaluation_interval",
        "val_before_train": "evaluate_before_training",
        "rollout_data_dir": "transcripts",
        "save_freq": "checkpoint_frequency, in checkpoint_config beside config",
        "total_training_steps": "training_iteration, in stop beside config",
    },
}


def refuse_other_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ``ValueError`` for the first key that is unknown here and known to TRL or verl, with ours."""
    for key, value in given.items():
        if key in known:
            continue
        if key in _TRL:
            raise ValueError(f"unknown key {key!r}: TRL's {key} is here {_TRL[key]}")
        if key in _VERL:
            inner = next(_leaves(value), "") if isinstance(value, Mapping) else ""
            ours = _VERL[key].get(inner)
            hint = f"{key}.{inner} is here {ours}" if ours else "docs/from_verl_or_trl.md translates its keys"
            raise ValueError(f"unknown key {key!r}: verl's {hint}" if ours else f"unknown key {key!r} of verl: {hint}")


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"

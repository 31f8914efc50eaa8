"""Config and stop keys of RLlib's old API stack: translated where there is a new name, refused where there is none."""

from __future__ import annotations

import warnings
from typing import Any

_NEW_NAMES = {
    "num_workers": "num_env_runners",
    "num_rollout_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner",
    "num_cpus_per_worker": "num_cpus_per_env_runner",
    "num_gpus_per_worker": "num_gpus_per_env_runner",
    "sgd_minibatch_size": "minibatch_size",
    "num_sgd_iter": "num_epochs",
    "train_batch_size": "train_batch_size_per_learner",
    "num_gpus": "num_gpus_per_learner",
    "num_cpus_for_driver": "num_cpus_for_main_process",
    "evaluation_num_workers": "evaluation_num_env_runners",
    "callbacks": "callbacks_class",
}

_WITHOUT_SUCCESSOR = {
    "observation_filter": "use a connector (env_to_module_connector: MeanStdFilter) in a Python file",
    "exploration_config": "the new API stack explores by the RLModule's distribution; remove it",
    "tf_session_args": "only torch is left; remove it",
    "eager_tracing": "only torch is left; remove it",
    "simple_optimizer": "remove it",
    "batch_mode": "set it in a Python file through config.env_runners(batch_mode=...)",
    "monitor": "record videos with a callback instead",
    "render_env": "record videos with a callback instead",
}

_OLD_STOPS = {
    "episode_reward_mean": "env_runners/episode_return_mean",
    "episode_reward_max": "env_runners/episode_return_max",
    "episode_len_mean": "env_runners/episode_len_mean",
    "timesteps_total": "num_env_steps_sampled_lifetime",
    "sampler_results/episode_reward_mean": "env_runners/episode_return_mean",
}

# parts of the old network options that DefaultModelConfig still has
_NETWORK_KEYS = {
    "fcnet_hiddens",
    "fcnet_activation",
    "conv_filters",
    "vf_share_layers",
    "use_lstm",
    "lstm_cell_size",
    "max_seq_len",
}


def translated_config(config: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """``config`` with new names.

    Raises:
        ValueError: a key of the old stack has no successor.
    """
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("framework", "framework_str"):
            if value not in ("torch", None):
                raise ValueError(f"config.{key} = {value!r}: RLlib's new API stack knows torch only; remove it")
        elif key in _WITHOUT_SUCCESSOR:
            raise ValueError(f"config.{key} is of RLlib's old API stack: {_WITHOUT_SUCCESSOR[key]}")
        elif key == "model" and algorithm != "RAPO":
            result["_model_config"] = _network(value)
        elif key in _NEW_NAMES:
            warnings.warn(f"config.{key} is now called {_NEW_NAMES[key]}", stacklevel=2)
            result[_NEW_NAMES[key]] = value
        else:
            result[key] = value
    return result


def _network(options: dict[str, Any]) -> dict[str, Any]:
    for key in options:
        if key not in _NETWORK_KEYS:
            raise ValueError(f"config.model.{key} is of RLlib's old API stack; known here are {sorted(_NETWORK_KEYS)}")
    warnings.warn("config.model is now given to the RLModule as model_config", stacklevel=3)
    return dict(options)


def translated_stop(stop: dict[str, Any]) -> dict[str, Any]:
    """Stop criteria under the names of the new stack's results."""
    result = {}
    for key, value in stop.items():
        if key in _OLD_STOPS:
            warnings.warn(f"stop.{key} is now called {_OLD_STOPS[key]}", stacklevel=2)
        result[_OLD_STOPS.get(key, key)] = value
    return result

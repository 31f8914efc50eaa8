"""Keys of RLlib's old API stack."""

import pytest

from rapo_rllib.cli.train.old_keys import translated_config, translated_stop


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"num_workers": 2}, {"num_env_runners": 2}),
        ({"num_rollout_workers": 2}, {"num_env_runners": 2}),
        ({"sgd_minibatch_size": 64}, {"minibatch_size": 64}),
        ({"num_sgd_iter": 3}, {"num_epochs": 3}),
        ({"evaluation_num_workers": 1}, {"evaluation_num_env_runners": 1}),
        ({"lr_schedule": [[0, 0.1], [10, 0.01]]}, {"lr": [[0, 0.1], [10, 0.01]]}),
        ({"lr": 0.1, "lr_schedule": None}, {"lr": 0.1}),
        ({"num_gpus": 1}, {"num_gpus_per_learner": 1}),
        ({"num_gpus": 0.5}, {"num_gpus_per_learner": 0.5}),
        ({"num_gpus": 4}, {"num_learners": 4, "num_gpus_per_learner": 1}),
        # the old batch was that of all learners together: 4000 / 4
        (
            {"train_batch_size": 4000, "num_gpus": 4},
            {"train_batch_size_per_learner": 1000, "num_learners": 4, "num_gpus_per_learner": 1},
        ),
        ({"train_batch_size": 4000, "num_learners": 2}, {"train_batch_size_per_learner": 2000, "num_learners": 2}),
        (
            {"train_batch_size": {"grid_search": [100, 200]}},
            {"train_batch_size_per_learner": {"grid_search": [100, 200]}},
        ),
        ({"model": {"fcnet_hiddens": [8]}}, {"_model_config": {"fcnet_hiddens": [8]}}),
        ({"model": {"fcnet_hiddens": {"grid_search": [[8]]}}}, {"_model_config": {"fcnet_hiddens": {"grid_search": [[8]]}}}),
        ({"framework": "torch", "enable_rl_module_and_learner": True, "observation_filter": "NoFilter"}, {}),
        ({"gamma": 0.9, "rollout_fragment_length": 20}, {"gamma": 0.9, "rollout_fragment_length": 20}),
    ],
)
def test_new_names(old: dict, new: dict) -> None:
    translated, notes = translated_config(old, "PPO")
    assert translated == new
    assert all(any(f"config.{key} is now called" in note for key in old) for note in notes)


def test_what_is_not_old_has_no_note() -> None:
    assert translated_config({"lr": 0.1, "model_config": {"fcnet_hiddens": [8]}}, "PPO") == (
        {"lr": 0.1, "_model_config": {"fcnet_hiddens": [8]}},
        [],
    )


def test_the_language_model_of_rapo_stays() -> None:
    config = {"model": {"name_or_path": "x"}}
    assert translated_config(config, "RAPO") == (config, [])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"framework": "tf"}, r"config.framework = 'tf': .*torch only; remove it"),
        ({"_enable_new_api_stack": False}, "old API stack is not supported; remove it"),
        ({"num_sgd_iter": 1, "num_epochs": 2}, "config.num_sgd_iter is the old name of num_epochs, .* remove num_sgd_iter"),
        ({"num_workers": 1, "num_rollout_workers": 2}, "num_rollout_workers is the old name of num_env_runners"),
        ({"model": {"custom_model": "m"}}, "config.model.custom_model is of RLlib's old API stack"),
        ({"buffer_size": 10}, "config.buffer_size .* replay_buffer_config"),
        ({"train_batch_size": "auto"}, "give train_batch_size_per_learner instead"),
    ],
)
def test_refused(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translated_config(config, "PPO")


def test_stop_criteria() -> None:
    stop, notes = translated_stop({"episode_reward_mean": 100, "env_runners": {"num_episodes": 3}, "training_iteration": 2})
    assert stop == {"env_runners/episode_return_mean": 100, "env_runners/num_episodes": 3, "training_iteration": 2}
    assert notes == ["stop.episode_reward_mean is now called env_runners/episode_return_mean"]


@pytest.mark.parametrize("limit", [True, "9", None, [1]])
def test_a_limit_must_be_a_number(limit) -> None:
    with pytest.raises(ValueError, match=r"stop.training_iteration = .*must be a number"):
        translated_stop({"training_iteration": limit})

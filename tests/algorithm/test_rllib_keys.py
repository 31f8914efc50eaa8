"""Every key of RLlib's ``AlgorithmConfig`` is read by us, works in RLlib as ever, or is refused."""

from __future__ import annotations

import functools
import inspect
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray.rllib
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.policy.policy import PolicySpec

import rapo_rllib
from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.algorithm.rllib_keys import READ, REFUSED, check_rllib_keys
from rapo_rllib.env_runner.callbacks import EPISODE_CALLBACKS, SAMPLE_CALLBACK

RLLIB = Path(ray.rllib.__file__).parent
PASSED_THROUGH = (  # what of RLlib runs in a training of RAPO
    *("algorithms/algorithm.py", "algorithms/algorithm_config.py", "algorithms/utils.py", "env/env_runner_group.py"),
    *("core/learner/learner.py", "core/learner/learner_group.py", "core/learner/torch/torch_learner.py"),
    "offline/offline_env_runner.py",
    *("utils/framework.py", "utils/actor_manager.py", "utils/metrics/metrics_logger.py", "utils/runners/runner_group.py"),
)


UNREAD = "a training of RAPO does not read this key of RLlib's; leave it out"


def config() -> RAPOConfig:
    return RAPOConfig().environment("rapo/word_problems")


def test_the_table_names_keys_of_rllib_once() -> None:
    assert [key for key, count in Counter(READ).items() if count > 1] == []
    assert set(READ) <= set(vars(AlgorithmConfig()))


def test_what_is_said_to_be_read_is_read() -> None:
    """As an attribute, by our code or by what of RLlib's runs; tables and docs do not count."""
    package = Path(rapo_rllib.__file__).parent
    left_out = ("rllib_keys.py", "cli")
    ours = "\n".join(p.read_text() for p in package.rglob("*.py") if not any(part in left_out for part in p.parts))
    theirs = "\n".join((RLLIB / path).read_text() for path in PASSED_THROUGH)
    built = (
        *(f"callbacks_{name}" for name in (*EPISODE_CALLBACKS, SAMPLE_CALLBACK)),
        "callbacks_on_evaluate_start",
        "callbacks_on_evaluate_end",
    )  # getattr(f"callbacks_{...}")
    for key in set(READ) - set(built):
        by_us = re.search(rf"\.{key}\b|getattr\(config, name\).*{key}", ours)
        names = {key, key.removeprefix("_")}
        assert by_us or any(len(re.findall(rf"\.{name}\b|\b{name}=", theirs)) > 1 for name in names), key


def other(value: Any) -> Any:
    """A value of about the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}_other"
    if isinstance(value, dict):
        return {**value, "other": PolicySpec()}
    if isinstance(value, list | tuple):
        return [*value, "other"]
    return functools.partial(print, "other")  # of None, classes and functions


def test_keys_that_nothing_reads_are_refused() -> None:
    for key in REFUSED:
        changed = config()
        object.__setattr__(changed, key, other(getattr(changed, key, None)))
        with pytest.raises(ValueError, match=rf"^{re.escape(key.removeprefix('_'))} = .*: {UNREAD}"):
            check_rllib_keys(changed)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("training", {"gamma": 0.9}, f"gamma = 0.9: {UNREAD}"),
        ("training", {"train_batch_size_per_learner": 64}, f"train_batch_size_per_learner = 64: {UNREAD}"),
        ("training", {"train_batch_size": 64}, f"train_batch_size = 64: {UNREAD}"),
        ("env_runners", {"explore": False}, f"explore = False: {UNREAD}"),
        ("env_runners", {"env_to_module_connector": lambda *_: None}, f"env_to_module_connector = .*: {UNREAD}"),
        ("multi_agent", {"policies": {"a", "b"}}, f"policies = .*: {UNREAD}"),
        ("offline_data", {"input_": ["/data"]}, rf"input_ = \['/data'\]: {UNREAD}"),
        ("callbacks", {"on_evaluate_offline_end": print}, f"callbacks_on_evaluate_offline_end = .*: {UNREAD}"),
        ("evaluation", {"evaluation_duration_unit": "timesteps"}, f"evaluation_duration_unit = 'timesteps': {UNREAD}"),
        ("evaluation", {"evaluation_config": {"gamma": 0.5}}, f"evaluation_config.gamma = 0.5: {UNREAD}"),
        ("evaluation", {"evaluation_config": {"learner_connector": 1}}, f"evaluation_config.learner_connector = 1: {UNREAD}"),
        ("offline_data", {"output": "/data"}, f"output = '/data': {UNREAD}"),
        ("training", {"num_epochs": 0}, "num_epochs = 0: must be a whole number at least 1"),
        ("training", {"num_epochs": 2.5}, "num_epochs = 2.5: must be a whole number at least 1"),
        ("training", {"max_staleness": True}, "max_staleness = True: must be a whole number"),
        ("training", {"engine": {"max_num_seqs": 8.5}}, "engine.max_num_seqs = 8.5: must be a whole number"),
        ("training", {"lr": -1}, "lr = -1: must be at least 0"),
        ("training", {"lr": "fast"}, "Invalid `lr` .fast. specified"),  # RLlib's own words
        ("training", {"lr": [[0, 1e-5], [10, -1e-5]]}, "lr = -1e-05: must be at least 0"),
        ("training", {"lr": [[0, 1e-5], [0, 1e-6]]}, r"lr = .*: a schedule starts at env step 0 and its steps increase"),
        (
            "training",
            {"protocol": {"examples": ["q"]}},
            r"protocol.examples = \['q'\]: must be a list of \[question, response\]",
        ),
        ("env_runners", {"num_env_runners": -1}, "num_env_runners = -1: must be a whole number at least 0"),
        ("env_runners", {"sample_timeout_s": 0}, "sample_timeout_s = 0: must be at least"),
        ("evaluation", {"evaluation_duration": 0}, "`evaluation_duration` .0. must be an int and >0"),
        ("evaluation", {"evaluation_interval": -1}, "evaluation_interval = -1: must be a whole number at least 0"),
        ("debugging", {"seed": -1}, "seed = -1: must be a whole number at least 0"),
    ],
)
def test_refused_as_users_set_it(method: str, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(config(), method)(**settings).validate()


def test_all_methods_of_callbacks_are_called() -> None:
    """Those of RLlib's old stack and of offline data aside."""
    called = {key.removeprefix("callbacks_") for key in READ if key.startswith("callbacks_on_")}
    old = {"on_sub_environment_created", "on_postprocess_trajectory", "on_create_policy", "on_learn_on_batch"}
    methods = {name for name, _ in inspect.getmembers(RLlibCallback, inspect.isfunction) if name.startswith("on_")}
    offline = {"on_evaluate_offline_start", "on_evaluate_offline_end", "on_offline_eval_runners_recreated"}
    assert methods == called | offline | old | {"on_workers_recreated"}  # beside on_env_runners_recreated


def test_configs_of_every_origin_are_accepted_again() -> None:
    """Validated twice, copied, pickled, as a dictionary as Tune hands it on, and as the config of an evaluation."""
    made = config().evaluation(evaluation_interval=1, evaluation_config={"max_response_tokens": 64})
    made.validate()
    made.validate()
    pickle.loads(pickle.dumps(made)).validate()
    made.copy(copy_frozen=False).validate()
    RAPOConfig().update_from_dict(made.to_dict()).validate()
    made.get_evaluation_config_object().validate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": [0, 1e-5]}, r"lr = \[0, 1e-05\]: must be a number or a schedule"),
        ({"lr": [[0, 1e-5], ["a", 1e-6]]}, "env steps of lr = 'a': must be at least 0"),
        ({"lr": float("inf")}, "lr = inf: must be at least 0"),
        ({"retrieval_prob": []}, r"retrieval_prob = \[\]: a schedule starts at env step 0"),
        ({"retrieval_prob": [[0, 0.5], ["10", 0.1]]}, "env steps of retrieval_prob = '10': must be at least 0"),
        ({"retrieval_prob": [[0, 0.5], [float("nan"), 0.1]]}, "env steps of retrieval_prob = nan"),
    ],
)
def test_points_of_a_schedule_are_numbers(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config().training(**settings).validate()


@pytest.mark.parametrize("key", ["multiagent", "model_config", "is_online", "language_model", "_applied_preset"])
def test_training_takes_no_key_that_nothing_reads(key: str) -> None:
    with pytest.raises(ValueError, match=f"unknown key '{key}': "):
        config().training(**{key: {}})


def test_settings_of_an_evaluation_without_engines_of_its_own_are_refused() -> None:
    """Evaluation asks the engines that train, and would ignore them."""
    other = config().evaluation(evaluation_interval=1, evaluation_config={"max_response_tokens": 64})
    with pytest.raises(ValueError, match="evaluation_config with evaluation_num_env_runners = 0: evaluation asks the engines"):
        other.preflight()
    own = config().evaluation(evaluation_num_env_runners=1, evaluation_config={"max_respons_tokens": 64})
    with pytest.raises(ValueError, match="unknown key 'max_respons_tokens': did you mean 'max_response_tokens'"):
        own.preflight()

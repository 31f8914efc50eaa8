"""``scheduler:``, ``--scheduler`` and search expressions: what Tune gets, and what is refused before anything starts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from cli_runs import refused
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, PopulationBasedTraining

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import only_config
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.cli.train.schedulers import make_scheduler
from rapo_rllib.cli.values import with_searches

REWARD = "env_runners/episode_return_mean"
PBT = {"type": "pbt", "metric": REWARD, "hyperparam_mutations": {"lr": {"uniform": [0.0, 1.0]}}}


@pytest.mark.parametrize(
    ("given", "kind", "attributes"),
    [
        ({"type": "asha", "metric": REWARD, "max_t": 20}, ASHAScheduler, {"_max_t": 20, "_mode": "max", "_metric": REWARD}),
        ({"type": "asha", "metric": "a", "mode": "min"}, ASHAScheduler, {"_mode": "min", "_time_attr": "training_iteration"}),
        ({"type": "async_hyperband", "metric": REWARD}, ASHAScheduler, {"_metric": REWARD}),
        ({"type": "median_stopping_rule", "metric": "a"}, MedianStoppingRule, {"_metric": "a"}),
        ({**PBT, "perturbation_interval": 3}, PopulationBasedTraining, {"_perturbation_interval": 3, "_mode": "max"}),
        ({**PBT, "perturbation_factors": [2, 0.5]}, PopulationBasedTraining, {"_perturbation_factors": (2, 0.5)}),
    ],
)
def test_tunes_scheduler_with_its_own_arguments(given: dict[str, Any], kind: type, attributes: dict[str, Any]) -> None:
    scheduler = make_scheduler(given)
    assert type(scheduler) is kind
    assert {name: getattr(scheduler, name) for name in attributes} == attributes


def test_perturbed_values_stay_in_their_range() -> None:
    mutations = {
        "lr": {"uniform": [0.1, 0.9]},
        "env_config": {"steps": {"randint": [1, 4]}},
        "group_size": [4, 8],
        "gamma": {"randn": [0, 1]},
    }
    scheduler = make_scheduler({**PBT, "hyperparam_mutations": mutations})
    explore = pickle.loads(pickle.dumps(scheduler))._custom_explore_fn  # Tune keeps schedulers in its snapshots
    config = {"lr": 1.08, "env_config": {"steps": 4, "tools": []}, "group_size": 8, "gamma": 7.0}
    assert explore(config) == {"lr": 0.9, "env_config": {"steps": 3, "tools": []}, "group_size": 8, "gamma": 7.0}
    assert explore({**config, "lr": 0.08})["lr"] == 0.1


def test_search_expressions_are_tunes() -> None:
    given = {
        "lr": {"loguniform": [1e-5, 1e-3]},
        "env_config": {"sizes": [{"choice": ["a", "b"]}, 3]},
        "g": {"grid_search": [1, 2]},
    }
    made = with_searches(given, "config")
    assert (made["lr"].lower, made["lr"].upper) == (1e-5, 1e-3)
    assert isinstance(made["lr"].get_sampler(), type(tune.loguniform(1, 2).get_sampler()))
    assert made["env_config"]["sizes"][0].categories == ["a", "b"]
    assert made["env_config"]["sizes"][1] == 3
    assert made["g"] == {"grid_search": [1, 2]}
    assert given["lr"] == {"loguniform": [1e-5, 1e-3]}
    assert with_searches({"uniform": True}, "config") == {"uniform": True}  # a key of somebody's own


def ppo(config: str = "", scheduler: str = "") -> str:
    body = f"run: PPO, env: CartPole-v1, config: {{{config}}}"
    return f"cart: {{{body}, scheduler: {{{scheduler}}}}}\n" if scheduler else f"cart: {{{body}}}\n"


BEGUN = "type: pbt, metric: a, hyperparam_mutations: "
SELDOM = "type: pbt, metric: evaluation/x, hyperparam_mutations: {lr: [1.0]}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ppo("", "type: lifo"), ["'cart'", "scheduler.type = 'lifo'", "asha", "pbt"]),
        (ppo("", "metric: a"), ["scheduler.type = None", "asha"]),
        (ppo("", "type: asha"), ["scheduler.metric is missing", REWARD]),
        (ppo("", "type: asha, metric: a, mode: best"), ["scheduler.mode = 'best'", "max or min"]),
        (ppo("", "type: asha, metric: a, grace_periods: 3"), ["'scheduler.grace_periods'", "'scheduler.grace_period'"]),
        (ppo("", "type: asha, metric: a, grace_period: 9, max_t: 3"), ["scheduler asha", "grace_period"]),
        (ppo("", "type: pbt, metric: a"), ["scheduler pbt", "hyperparam_mutations"]),
        (ppo("", f"{BEGUN}{{lr: 3}}"), ["scheduler.hyperparam_mutations.lr = 3", "{uniform: [0, 1]}"]),
        (ppo("", f"{BEGUN}[lr]"), ["scheduler.hyperparam_mutations", "must be a mapping"]),
        (ppo("", f"{BEGUN}{{lr: {{uniform: [1, 0]}}}}"), ["hyperparam_mutations.lr = {uniform: [1, 0]}", "lower end"]),
        (ppo("", f"{BEGUN}{{env_config: {{a: [1]}}}}"), ["config.env_config.a has no value to begin with"]),
        (ppo("", "type: asha, metric: evaluation/env_runners/accuracy"), ["nothing is evaluated", "evaluation_interval"]),
        (ppo("evaluation_interval: 2", SELDOM), ["one of 2 results only", "scheduler.require_attrs to false"]),
        (ppo("lr: {uniform: [1]}"), ["config.lr = {uniform: [1]}"]),
        (ppo("lr: {uniform: [a, b]}"), ["config.lr = {uniform: ['a', 'b']}", "numbers"]),
        (ppo("lr: {loguniform: [0, 1]}"), ["config.lr = {loguniform: [0, 1]}"]),
        (ppo("env_config: {deep: {choice: []}}"), ["config.env_config.deep = {choice: []}"]),
    ],
)
def test_a_mistake_is_refused_by_its_key(tmp_path: Path, monkeypatch, text: str, parts: list[str]) -> None:
    message = refused(monkeypatch, tmp_path / "bad.yaml", text)
    assert [part for part in parts if part not in message] == []


def test_a_command_that_needs_one_config_wants_no_search(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("a: {run: RAPO, env: rapo/word_problems, config: {lr: {loguniform: [1e-6, 1e-4]}}}\n")
    with pytest.raises(ValueError, match=r"config\.lr is to be drawn at random: replace the search by one value"):
        only_config(read_experiments(tmp_path / "sweep.yaml", RunOptions()))
    assert only_config(read_experiments(tmp_path / "sweep.yaml", RunOptions(overrides=[("lr", 1e-5)]))).lr == 1e-5

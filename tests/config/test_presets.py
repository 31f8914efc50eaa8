"""Presets: every key reaches its layer, what is given beside a preset wins, and a search over presets works."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.search.variant_generator import generate_variants

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.off_policy import open_buffer
from rapo_rllib.algorithm.trial_files import RunName
from rapo_rllib.config.presets import NESTED, PRESETS
from rapo_rllib.env_runner.parts import make_retriever, open_layers
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.rewards import RewardOptions
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

ABLATIONS = {
    "without_rpo": {"retrieval_advantage_weight": 0.0, "importance_shaping_weight": 0.0},
    "without_rr": {"retrieval_advantage_weight": 0.0},
    "without_ris": {"importance_shaping_weight": 0.0},
    "without_rq": {"retrieval_quality": "none"},
    "without_rt": {"retrieval_timing": "none"},
    "trajectory_retrieval": {"retrieval_level": "trajectory"},
    "entropy_increase": {"retrieval_quality": "rise"},
    "low_entropy": {"retrieval_timing": "low_entropy"},
    "random_retrieval": {"retrieval_noise": 1.0},
}

GRPO = {"num_hybrid": 0, "clip_high": 0.2}
ALGORITHMS = {
    "grpo": GRPO,
    "dapo": {"num_hybrid": 0, "loss_aggregation": "token", "overlong_buffer_share": 0.2, "dynamic_sampling": True},
    "dr_grpo": {**GRPO, "loss_aggregation": "constant", "normalize_std": False},
    "gspo": {
        **{"num_hybrid": 0, "importance_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
        "old_logprobs": "learner",
        "shaping_order": "after_clip",
    },
    "gigpo": {**GRPO, "credit": "gigpo", "step_discount": 0.95},
    "r1_searcher": GRPO,
    "gppo": {"num_hybrid": 0, "clip_mode": "gradient_preserving", "loss_aggregation": "token"},
    "luffy": {**GRPO, "loss_aggregation": "constant", "normalize_std": False, "off_policy_trajectories": 1},
    "replay": {
        "num_hybrid": 0,
        "loss_aggregation": "token",
        "off_policy_trajectories": 1,
        "off_policy_source": "replay",
        "off_policy_shaping": None,
    },
}


def make(config: RAPOConfig | None = None, **training: Any) -> RAPOConfig:
    return (config or RAPOConfig()).environment("rapo/word_problems").training(**training)


def reward_options(config: RAPOConfig) -> Any:
    env = config.question_source.env_maker()()
    options = env.unwrapped.options
    env.close()
    return options


def changed(config: RAPOConfig) -> dict[str, Any]:
    """What differs from the defaults in the flat settings of the layers."""
    now = config.settings
    parts = (now.objective, now.rollout, now.update, now.off_policy)
    return {k: v for part in parts for k, v in asdict(part).items() if v != asdict(type(part)())[k]}


def test_the_released_code_in_every_layer() -> None:
    config = make(RAPOConfig().training(preset="released_code"))
    config.validate()
    assert changed(config) == {
        "num_hybrid": 7,
        "entropy_top_k": 10,
        "step_entropy_tokens": 20,
        "step_entropy_reduction": "sum",
        "loss_aggregation": "token",
        "dual_clip": 3.0,
        "retrieval_budget": "prompt_and_response",
    }
    objective = config.settings.objective
    assert (objective.clip_low, objective.clip_high) == (0.2, 0.28)
    assert (objective.advantage_epsilon, objective.normalize_std) == (1e-6, True)
    assert (objective.retrieval_advantage_weight, objective.importance_shaping_weight) == (0.2, 0.05)
    buffer = asdict(config.settings.buffer)
    assert "think for yourself" in buffer.pop("fallback_text").lower()
    assert {k: v for k, v in buffer.items() if v != asdict(BufferSettings())[k]} == {
        "collection": "step_traces_released",
        "top_k": 3,
        "selection": "best_reward",
        "pooling": "last_token",
        "key_recipe": "last_characters",
        "index": "hnsw",
    }
    options = reward_options(config)
    assert options.scorer == "qa"
    assert options.reward == RewardOptions(
        preset="released_code",
        bad_format=-1.0,
        all_tools=0.1,
        all_tools_for="partial",
        strict_format=True,
        format_check="whole_text",
    )


def test_the_released_constants_replace_others() -> None:
    config = make(clip_low=0.1, importance_shaping_weight=0.5).training(preset="released_code")
    assert (config.settings.objective.clip_low, config.settings.objective.importance_shaping_weight) == (0.2, 0.05)


@pytest.mark.parametrize("name", [*ABLATIONS, *ALGORITHMS])
def test_a_preset_changes_its_keys_and_nothing_else(name: str) -> None:
    config = make(preset=name)
    config.validate()
    assert changed(config) == (ABLATIONS | ALGORITHMS)[name]
    assert changed(make(RAPOConfig().update_from_dict({"preset": name}))) == (ABLATIONS | ALGORITHMS)[name]
    assert changed(config.training(preset=None)) == {}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_retrieval_joins_any_algorithm(name: str) -> None:
    config = make(preset=name, num_hybrid=8)
    config.validate()
    objective = config.settings.objective
    assert (objective.retrieval_advantage_weight, objective.importance_shaping_weight) == (0.2, 0.05)
    assert config.settings.uses_retrieval and not make(preset=name).settings.uses_retrieval


def test_all_presets_are_tested_and_set_only_keys_that_exist() -> None:
    assert set(PRESETS) == {"released_code", *ABLATIONS, *ALGORITHMS}
    for name in PRESETS:
        again = make().update_from_dict({k: v for k, v in PRESETS[name].items() if k != "env_config"})  # refuses unknown keys
        assert changed(again) == changed(make(preset=name))


def test_whole_trajectories_have_a_buffer_of_their_own() -> None:
    config = make(preset="trajectory_retrieval", step_trace_buffer={"uri": "a.db"})
    assert config.settings.buffer == BufferSettings(uri="a.db", collection="whole_trajectories", level="trajectory")


@pytest.mark.parametrize("order", ["preset first", "preset last", "one call", "dictionary"])
def test_nested_keys_lie_over_the_presets_in_any_order(order: str) -> None:
    mine = {"uri": "mine.db", "top_k": 5}
    env_config = {"steps": [1, 1], "reward": {"bad_format": -0.5}}
    preset: dict[str, Any] = {"preset": "released_code"}
    if order == "preset first":
        config = RAPOConfig().training(**preset).environment(env_config=env_config).training(step_trace_buffer=mine)
    elif order == "preset last":
        config = RAPOConfig().environment(env_config=env_config).training(step_trace_buffer=mine).training(**preset)
    elif order == "one call":
        config = RAPOConfig().environment(env_config=env_config).training(step_trace_buffer=mine, **preset)
    else:
        config = RAPOConfig().update_from_dict({"step_trace_buffer": mine, "env_config": env_config, **preset})
    buffer, options = make(config).settings.buffer, reward_options(config)
    assert (buffer.uri, buffer.top_k, buffer.selection, buffer.index) == ("mine.db", 5, "best_reward", "hnsw")
    assert (options.steps, options.scorer) == ((1, 1), "qa")
    assert (options.reward.bad_format, options.reward.all_tools, options.reward.strict_format) == (-0.5, 0.1, True)


def test_flat_keys_beside_a_preset_override_it_even_by_the_default() -> None:
    for config in (
        make(num_hybrid=8, preset="released_code"),
        make().update_from_dict({"num_hybrid": 8, "preset": "released_code"}),
        make(RAPOConfig().training(preset="released_code"), num_hybrid=8),
    ):
        assert (config.settings.rollout.num_hybrid, config.settings.objective.dual_clip) == (8, 3.0)


def test_another_preset_takes_the_place_of_the_first() -> None:
    config = make(preset="released_code").training(preset="without_rr", group_size=4, num_hybrid=2)
    assert changed(config) == {"retrieval_advantage_weight": 0.0, "group_size": 4, "num_hybrid": 2}
    assert config.settings.buffer == BufferSettings()
    assert changed(config.training(preset=None)) == {"group_size": 4, "num_hybrid": 2}


def test_a_dictionary_of_the_config_makes_the_same_config() -> None:
    config = make(RAPOConfig().training(preset="released_code"), num_hybrid=8, step_trace_buffer={"top_k": 2})
    again = RAPOConfig().update_from_dict(config.to_dict())
    again.validate()
    assert (again.preset, changed(again), again.settings.buffer) == (config.preset, changed(config), config.settings.buffer)
    assert again.settings.rollout.num_hybrid == 8
    plain = RAPOConfig().training(preset="released_code").update_from_dict(make().to_dict())
    assert (plain.preset, changed(plain), plain.settings.buffer) == (None, {}, BufferSettings())


def variants(space: dict[str, Any]) -> dict[str, RAPOConfig]:
    """What Tune hands to its trials, by preset."""
    made = [RAPOConfig().update_from_dict(variant) for _, variant in generate_variants(space)]
    for config in made:
        config.validate()
    return {str(config.preset): config for config in made}


def test_a_search_over_presets_in_a_dictionary() -> None:
    space = {"env": "rapo/word_problems", "preset": tune.grid_search([None, *ABLATIONS]), "group_size": 4, "num_hybrid": 2}
    sizes = {"group_size": 4, "num_hybrid": 2}
    assert {name: changed(config) for name, config in variants(space).items()} == {
        "None": sizes,
        **{name: {**keys, **sizes} for name, keys in ABLATIONS.items()},
    }


def test_a_search_over_presets_in_a_whole_config() -> None:
    """Its dictionary holds every key; defaults that nobody has asked for must not override the preset."""
    names = ["without_rr", "released_code", "replay"]
    found = variants(make(preset=tune.grid_search(names), group_size=8, dual_clip=5.0).to_dict())
    assert changed(found["replay"]) == {**ALGORITHMS["replay"], "group_size": 8, "dual_clip": 5.0}
    assert changed(found["without_rr"]) == {"retrieval_advantage_weight": 0.0, "group_size": 8, "dual_clip": 5.0}
    released = changed(found["released_code"])
    assert (released["num_hybrid"], released["group_size"], released["dual_clip"]) == (7, 8, 5.0)
    assert found["released_code"].settings.buffer.index == "hnsw"


def test_a_preset_over_a_config_that_has_another() -> None:
    given = make(preset="released_code", clip_low=0.1).to_dict() | {"preset": "without_rr"}
    assert changed(RAPOConfig().update_from_dict(given)) == {"retrieval_advantage_weight": 0.0, "clip_low": 0.1}


def test_trials_of_a_search_share_a_path_and_retrieve_as_their_preset_says(tmp_path: Path) -> None:
    query = HistoryQuery("Ann has 3 apples and buys 4 more. How many apples has she?", "", "q")
    answers = {}
    for name in (None, "random_retrieval", "trajectory_retrieval", "released_code"):
        config = make(preset=name, step_trace_buffer={"uri": str(tmp_path / "t.db"), "max_traces": 40, "timeout_s": 60.0})
        buffer, upkeep = open_buffer(config.settings, config.question_source, Progress("test"), RunName("run"))
        layers = open_layers(config.settings)
        answers[name] = make_retriever(config.settings, layers)([query, replace(query, question_id="r")])
        layers.close()
        upkeep.close()
        buffer.close()
    assert [a.noisy for a in answers["random_retrieval"]] == [True, True]
    assert [a.noisy for name in (None, "trajectory_retrieval", "released_code") for a in answers[name]] == [False] * 6
    assert answers[None][0].similarity > 0.5 and answers[None][0].trace.step_index == 0
    assert answers[None][0].trace.text.endswith("</result>\n")  # a step
    whole = answers["trajectory_retrieval"][0].trace
    assert "</result>" in whole.text and whole.text.endswith("</answer>")
    released = answers["released_code"][0]
    assert released.trace.reward > 0 and released.similarity != answers[None][0].similarity  # another embedding


def test_the_command_line_reads_presets(tmp_path: Path) -> None:
    from rapo_rllib.cli.options import RunOptions
    from rapo_rllib.cli.train.checks import check_experiment
    from rapo_rllib.cli.train.experiments import read_experiments

    path = tmp_path / "job.yaml"
    body = "{{run: RAPO, env: rapo/word_problems, config: {{preset: {preset}, step_trace_buffer: {{uri: {uri}}}}}}}"
    text = f"a: {body}\n"
    path.write_text(text.format(preset="{grid_search: [released_code, without_rq]}", uri=tmp_path / "t.db"))
    assert len(check_experiment(read_experiments(path, RunOptions())[0])) == 2
    path.write_text(text.format(preset="releasd", uri=tmp_path / "t.db"))
    with pytest.raises(ValueError, match=r"preset = 'releasd': must be one of released_code, without_rpo, .*random_retrieval"):
        check_experiment(read_experiments(path, RunOptions())[0])


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ValueError, match="preset = 'without_r': must be one of released_code, "):
        make(preset="without_r")
    with pytest.raises(ValueError, match="preset = 'without_r': must be one of released_code, "):
        RAPOConfig().update_from_dict({"preset": "without_r"})
    config = make(preset=tune.grid_search(["without_rr"]))
    with pytest.raises(ValueError, match=r"preset = \{'grid_search'"):
        config.validate()
    config = make()
    config.preset = "without_rr"
    with pytest.raises(ValueError, match=r"preset = 'without_rr' was set but not applied: give it to training\(\)"):
        config.validate()


def test_the_page_about_presets_names_all_of_them_with_all_their_keys() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "algorithm.md").read_text()
    for name, values in PRESETS.items():
        if name in ALGORITHMS and name != "grpo":  # their rows say what they change in it
            values = {key: value for key, value in values.items() if PRESETS["grpo"].get(key, "unset") != value}
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")] or [page]
        keys = [key for key in values if key not in NESTED] + [key for nested in NESTED for key in values.get(nested, {})]
        assert [key for key in keys if key not in row] == [], name

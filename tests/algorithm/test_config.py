"""Every wrong value is refused by name before anything heavy starts; every right one reaches the settings below."""

from __future__ import annotations

from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.settings import LoraSettings, ObjectiveSettings, RolloutSettings


def make(**training: Any) -> RAPOConfig:
    return RAPOConfig().environment("rapo/word_problems").training(**training)


NATIVE = {"format": "native"}


@pytest.mark.parametrize(
    "training, message",
    [
        ({"retrieval_probability": 0.5}, "unknown key 'retrieval_probability': did you mean 'retrieval_prob'"),
        ({"num_hybrid": 20}, "num_hybrid = 20 is more than group_size = 16"),
        ({"hybrid_groups": "failed", "num_hybrid": 16}, "hybrid_groups = 'failed' with num_hybrid = 16, group_size = 16"),
        ({"hybrid_groups": "failed", "num_hybrid": 0}, "hybrid_groups = 'failed' with num_hybrid = 0, group_size = 16"),
        ({"hybrid_groups": "failed", "branching": {}}, "hybrid_groups = 'failed' with branching: each kind forks"),
        (
            {"expert_start_share": 0.5, "group_size": 1, "num_hybrid": 0, "off_policy_trajectories": 1},
            "expert_start_share or expert_step_share with group_size = 1",
        ),
        ({"expert_step_share": [[0, 2.0]]}, "expert_step_share = 2.0: must be between 0 and 1"),
        ({"retrieval_by_success": True, "num_hybrid": 0}, "retrieval_by_success: nothing retrieves"),
        ({"group_size": 0}, "group_size = 0: must be a whole number at least 1"),
        ({"retrieval_prob": [[5, 0.1]]}, "a schedule starts at env step 0"),
        ({"retrieval_prob": [[0, 0.1], [0, 0.2]]}, "its steps increase"),
        ({"num_minibatches": 64}, "num_minibatches = 64 is more than questions_per_step = 32"),
        (
            {"clip_high": 0.04, "num_hybrid": 4},
            "importance_shaping_weight = 0.05 with clip_high = 0.04: shaping alone can pass the clip",
        ),
        ({"dual_clip": 1.02, "num_hybrid": 4}, "importance_shaping_weight = 0.05 with dual_clip = 1.02"),
        (
            {"importance_cap": 3.0},
            "importance_cap = 3.0 with old_logprobs = 'auto' and num_minibatches = 2: π_old is the engine's",
        ),
        ({"weight_transfer": "nccl"}, "weight_transfer = 'nccl' goes from GPU to GPU, of a process each: set num_env_runners"),
        ({"max_staleness": 1}, "max_staleness = 1 with num_env_runners = 0"),
        ({"stale_groups": "wait"}, "stale_groups = 'wait' with max_staleness = 0"),
        ({"learning_rate": 1e-5}, "docs/from_verl_or_trl.md translates keys of verl and TRL"),
        ({"data": {"train_batch_size": 8}}, "docs/from_verl_or_trl.md translates keys of verl and TRL"),
        ({"engine": {"sleep": True}}, "engine.sleep = True is for a GPU that engine and learner share"),
        ({"model": {"name": "x"}}, "unknown key 'model.name': did you mean 'model.name_or_path'"),
        ({"model": {"dtype": "bf16"}}, "model.dtype = 'bf16': must be one of 'float32', 'bfloat16', 'float64'"),
        ({"model": {"autocast_dtype": "float16"}}, "model.autocast_dtype = 'float16': must be one of"),
        ({"engine": {"dtype": "half"}}, "engine.dtype = 'half': must be one of"),
        ({"engine": {"max_seqs": 1}}, "unknown key 'engine.max_seqs'"),
        ({"protocol": {"system": ""}}, "unknown key 'protocol.system'"),
        ({"step_trace_buffer": {"url": ""}}, "unknown key 'step_trace_buffer.url': did you mean 'step_trace_buffer.uri'"),
        ({"max_tool_calls": 0}, "nothing is ever retrieved"),
        ({"model": {"lora": {"ranks": 8}}}, "unknown key 'model.lora.ranks': did you mean 'model.lora.rank'"),
        ({"model": {"lora": {"rank": 0}}}, "model.lora.rank = 0: must be a whole number at least 1"),
        ({"model": {"lora": {"target_modules": "q_proj"}}}, "must be 'all-linear', or a list of linear layers' names"),
        ({"model": {"lora": {"target_modules": []}}}, "must be 'all-linear', or a list of linear layers' names"),
        ({"branching": {"rule": "dice"}}, "branching.rule = 'dice': must be one of 'threshold', 'coin'"),
        ({"branching": {"initial": 20}}, "branching.initial = 20: must be a whole number between 1 and 16"),
        ({"branching": {"alpha": 0.5}}, "unknown key 'branching.alpha'"),
        ({"credit": "gigpo", "group_size": 1, "num_hybrid": 0}, "credit = 'gigpo' with group_size = 1"),
        ({"group_size": 1, "num_hybrid": 0}, "group_size = 1: a trajectory is compared with the others"),
        ({"preset": "grpo", "group_size": 1}, "group_size = 1: a trajectory is compared with the others"),
        ({"credit": "gigpo", "step_discount": 0}, "step_discount = 0: must be a number above 0 and at most 1"),
        ({"credit": "gigpo", "step_discount": 1.5}, "step_discount = 1.5: must be a number above 0 and at most 1"),
        (
            {"step_discount": 0.9},
            "step_discount = 0.9 with credit = 'trajectory', which does not read it: set credit to 'gigpo'",
        ),
        ({"clip_mode": "gradient_preserving", "dual_clip": 3.0}, "is to be preserved; set dual_clip to null"),
        (
            {"importance_level": "sequence", "off_policy_trajectories": 1},
            "importance_level = 'sequence' with off_policy_source = 'expert'",
        ),
        (
            {"importance_level": "sequence", "off_policy_trajectories": 1, "off_policy_source": "replay"},
            "importance_level = 'sequence' with off_policy_shaping = 0.1",
        ),
        ({"shown_steps": "own", "importance_level": "sequence"}, "shown_steps = 'own' with importance_level = 'sequence'"),
        ({"shown_steps": "imitated", "off_policy_shaping": None}, "set off_policy_shaping to 0.1"),
        ({"shown_steps": "imitated", "retrieval_level": "trajectory"}, "set shown_steps to 'context'"),
        ({"protocol": NATIVE, "retrieval_level": "trajectory"}, "'trajectory' with protocol.format = 'native'"),
        ({"step_trace_buffer": {"level": "step"}}, "step_trace_buffer.level = 'step': set retrieval_level instead"),
    ],
)
def test_wrong_values_are_refused_by_name(training: dict, message: str) -> None:
    import re

    with pytest.raises(ValueError, match=re.escape(message)):
        make(**training).validate()


def test_more_learners_than_groups_of_a_minibatch_are_refused() -> None:
    make(questions_per_step=8, num_minibatches=2).learners(num_learners=4).validate()
    config = make(questions_per_step=8, num_minibatches=3).learners(num_learners=4)
    with pytest.raises(ValueError, match=r"num_learners = 4 is more than the groups .* = 8 by num_minibatches = 3"):
        config.validate()


def test_defaults_are_the_papers() -> None:
    config = RAPOConfig()
    expected = {
        "questions_per_step": 32,
        "num_minibatches": 2,
        "group_size": 16,
        "num_hybrid": 8,
        "retrieval_prob": 0.5,
        "retrieval_advantage_weight": 0.2,
        "importance_shaping_weight": 0.05,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "kl_coeff": 0.0,
        "lr": 1e-6,
        "temperature": 1.0,
        "max_tool_calls": 3,
        "max_response_tokens": 4096,
        "max_prompt_tokens": 1536,
    }
    assert {key: getattr(config, key) for key in expected} == expected


def test_every_setting_is_a_key_that_reaches_its_layer() -> None:
    changed = {"kl_coeff": 0.5, "dual_clip": 3.0, "normalize_std": False, "group_size": 4, "num_hybrid": 1, "tool_workers": 9}
    config = RAPOConfig().update_from_dict(changed)
    objective, rollout = config.settings.objective, config.settings.rollout
    assert (objective.kl_coeff, objective.dual_clip, objective.normalize_std) == (0.5, 3.0, False)
    assert (rollout.group_size, rollout.num_hybrid, rollout.tool_workers) == (4, 1, 9)
    for settings in (ObjectiveSettings, RolloutSettings):
        assert all(hasattr(config, name) for name in settings.__dataclass_fields__)


def test_a_dictionary_of_the_config_makes_the_same_config() -> None:
    config = make(model={"name_or_path": "x"}, group_size=4, num_hybrid=2, retrieval_prob=[[0, 0.5], [10, 0.0]])
    again = RAPOConfig().update_from_dict(config.to_dict())
    assert again.language_model == {"name_or_path": "x"} and again.group_size == 4
    assert again.retrieval_prob == [[0, 0.5], [10, 0.0]]


def test_lora_from_yaml() -> None:
    config = RAPOConfig().update_from_dict({"model": {"lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"]}}})
    settings = config.settings.model.lora
    assert settings == LoraSettings(rank=8, target_modules=("q_proj", "v_proj")) and settings.scaling == 4
    assert RAPOConfig().settings.model.lora is None and make(model={"lora": {}}).settings.model.lora == LoraSettings()


@pytest.mark.parametrize(
    ("num_hybrid", "prob", "expected"), [(0, 0.5, False), (2, 0.0, False), (2, 0.5, True), (2, [[0, 0.0]], True)]
)
def test_whether_retrieval_is_used(num_hybrid: int, prob: Any, expected: bool) -> None:
    assert make(num_hybrid=num_hybrid, retrieval_prob=prob).settings.uses_retrieval is expected


@pytest.mark.parametrize("num_env_runners, local", [(0, True), (2, False)])
def test_no_local_engine_beside_remote_ones(num_env_runners: int, local: bool) -> None:
    config = make().env_runners(num_env_runners=num_env_runners)
    config.validate()
    assert config.create_local_env_runner is local


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model": {"name_or_path": "/no/such/model"}}, r"model\.name_or_path.*/no/such/model"),
        (
            {"model": {"lora": {"target_modules": ["query"]}}},
            r"model\.lora\.target_modules: 'query' names no linear layers of this model, which are down_proj",
        ),
        ({"step_trace_buffer": {"uri": "ftp://x"}}, r"step_trace_buffer\.uri.*ftp://x"),
        ({"step_trace_buffer": {"traces": "/no/traces.jsonl"}}, r"step_trace_buffer\.traces = '/no/traces\.jsonl'"),
        ({"protocol": NATIVE}, "the model's chat template does not show tools"),
        (
            {"branching": {}, "env_config": {"tools": [{"name": "python", "options": {"keep_state": True}}]}},
            "branching with keep_state of the tool 'python'",
        ),
        ({"step_trace_buffer": {"embedder": "/no/embedder"}}, r"step_trace_buffer\.embedder.*/no/embedder"),
    ],
)
def test_preflight_names_what_is_missing(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change).preflight()


def test_an_endpoint_writes_in_tags() -> None:
    from rapo_rllib.agents.endpoint import EndpointOptions
    from rapo_rllib.agents.setup import AgentChoice, make_agent_factory

    config = make(protocol=NATIVE)
    with pytest.raises(ValueError, match=r"protocol\.format = 'native' with 'http://h/v1#m': an endpoint writes in tags"):
        choice = AgentChoice("http://h/v1#m", endpoint=EndpointOptions("http://h/v1", "m"))
        make_agent_factory(config.settings, config.question_source, choice)


def test_preflight_refuses_an_unknown_environment() -> None:
    with pytest.raises(ValueError, match="env = 'rapo/nothing' is neither a gymnasium id"):
        RAPOConfig().environment("rapo/nothing").preflight()


def test_preflight_refuses_more_evaluation_than_there_is() -> None:
    config = RAPOConfig().environment("rapo/word_problems", env_config={"num_test": 16})
    config.evaluation(evaluation_interval=1, evaluation_duration=32)
    with pytest.raises(ValueError, match="evaluation_duration = 32: must be a number of held-out questions between 1 and 16"):
        config.preflight()


@pytest.mark.parametrize(
    ("settings", "whose"),
    [
        ({}, "rollout"),  # two minibatches
        ({"num_minibatches": 1}, "learner"),
        ({"num_minibatches": 1, "num_epochs": 3}, "learner"),
        ({"num_minibatches": 1, "max_staleness": 1}, "rollout"),
        ({"num_minibatches": 2, "max_staleness": 2}, "learner"),
        ({"num_minibatches": 1, "old_logprobs": "rollout"}, "rollout"),
        ({"old_logprobs": "learner"}, "learner"),
    ],
)
def test_the_old_policy_is_the_learners_where_that_costs_nothing(settings: dict, whose: str) -> None:
    assert RAPOConfig().training(**settings).settings.old_policy == whose


def test_what_goes_together_is_accepted() -> None:
    """Clips that shaping cannot pass, caps that cut something, and whole trajectories, which need no call to be retrieved."""
    for settings in (
        {"clip_high": 0.04, "num_hybrid": 0},
        {"clip_high": 0.04, "num_hybrid": 4, "shaping_order": "after_clip"},
        {"clip_high": 0.04, "num_hybrid": 4, "importance_shaping_weight": 0.04},
        {"importance_cap": 3.0, "num_minibatches": 1},
        {"importance_cap": None},
        {"max_tool_calls": 0, "retrieval_level": "trajectory"},
    ):
        make(**settings).validate()


@pytest.mark.parametrize("settings", [{"max_staleness": 1}, {"weight_transfer": "nccl"}], ids=str)
def test_evaluation_needs_no_env_runners_of_its_own(settings: dict) -> None:
    config = make(**settings).env_runners(num_env_runners=1, num_gpus_per_env_runner=1).learners(num_gpus_per_learner=1)
    evaluation = config.get_evaluation_config_object()
    assert evaluation.num_env_runners == 0
    evaluation.validate()

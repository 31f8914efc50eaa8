"""One source of settings for all models of an evaluation, and what of a run it takes over."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from rapo_rllib import RAPO, RAPOConfig
from rapo_rllib.agents.setup import AgentChoice
from rapo_rllib.checkpoints.folder import atomic_directory
from rapo_rllib.cli.evaluate.choices import chosen_models
from rapo_rllib.cli.evaluate.settings_source import SettingsSource
from rapo_rllib.envs.benchmarks import BENCHMARKS
from rapo_rllib.evaluation.plan import AskedBenchmark, EvaluationPlan
from rapo_rllib.evaluation.settings import resolved_settings

PLAN = EvaluationPlan((AskedBenchmark(BENCHMARKS["gsm8k"], ()),))


def checkpoint(folder: Path, config: RAPOConfig) -> str:
    """What an evaluation reads of one: class and config, as RLlib writes them."""
    with atomic_directory(folder, iteration=1) as inside:
        (inside / "rllib_checkpoint.json").write_text("{}")
        saved = {"class": RAPO, "ctor_args_and_kwargs": ((config.get_state(),), {})}
        (inside / "class_and_ctor_args.pkl").write_bytes(cloudpickle.dumps(saved))
    return str(folder)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The paths on which modules are found stay as they are."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings_of(choices: list[AgentChoice], *overrides: str) -> list[dict[str, Any]]:
    configs = SettingsSource(None, overrides).configs(choices, PLAN)
    return [resolved_settings(config, choice, PLAN) for config, choice in zip(configs, choices, strict=True)]


def test_the_first_checkpoint_decides_for_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"num_train": 4, "max_tool_calls": 7, "tools": ["python"], "reward": {"format": 0.5}}
    first = RAPOConfig().environment("rapo/word_problems", env_config=own)
    first.training(
        max_response_tokens=512,
        temperature=0.7,
        protocol={"question_template": "{question}?"},
        model={"trust_remote_code": True},
    )
    second = RAPOConfig().environment("rapo/questions", env_config={"dataset": "gsm8k", "tools": []})
    names = ["some/model", checkpoint(folder / "a", first), checkpoint(folder / "b", second)]
    choices = [AgentChoice(name) for name in names] + [AgentChoice("http://127.0.0.1:1/v1", model="m")]
    configs = SettingsSource(None, ("env_config.reward.correct=2",)).configs(choices, PLAN)
    found = [resolved_settings(config, choice, PLAN) for config, choice in zip(configs, choices, strict=True)]
    for settings in found:
        assert (settings["temperature"], settings["max_response_tokens"], settings["tools"]) == (
            0.7,
            512,
            {"gsm8k": ["python"]},
        )
        assert settings["env_config"] == {"max_tool_calls": 7, "reward": {"format": 0.5, "correct": 2}, "scorer": "auto"}
        assert settings["protocol"]["question_template"] == "{question}?"
    assert [config.settings.model.trust_remote_code for config in configs] == [False, True, False, True]
    said = capsys.readouterr().err
    assert (
        "b: is asked with the settings of the first checkpoint; those of its own run differ in env_config.max_tool_calls, "
        in said
    )
    for name in ("env_config.reward.format", "max_response_tokens", "protocol.question_template", "temperature", "tools.gsm8k"):
        assert name in said
    assert said.count("\n") == 1


def test_what_an_environment_of_ones_own_means_by_its_keys_is_not_taken_over() -> None:
    from rapo_rllib.evaluation.settings import evaluation_config

    base = RAPOConfig().environment("CartPole-v1", env_config={"reward": "theirs", "tools": 3})
    assert evaluation_config(base, [], "auto").env_config == {"dataset": "gsm8k", "tools": [], "scorer": "auto"}


@pytest.mark.parametrize("item", ["env_config.max_tool_cals=1", "env_config={limit_test: 3}", "env_config.scorer=qa"])
def test_an_override_that_nobody_reads_is_refused(item: str) -> None:
    with pytest.raises(ValueError, match=r"--set env_config\.\w+: benchmarks bring their own environment"):
        settings_of([AgentChoice("some/model")], item)


def test_what_decides_the_answers_is_all_there(folder: Path) -> None:
    choice = AgentChoice(checkpoint(folder / "a", RAPOConfig()))
    before = settings_of([choice])
    assert settings_of([choice], "engine.dtype=float16") != before != settings_of([choice], "engine.extra.seed=7")
    checkpoint(folder / "a", RAPOConfig().training(lr=1e-3))  # another one in its place
    assert settings_of([choice]) != before
    asked = [AgentChoice("http://127.0.0.1:1/v1", model="m", extra=extra) for extra in ({}, {"top_p": 0.1})]
    assert settings_of(asked[:1]) != settings_of(asked[1:])
    config = RAPOConfig().training(step_trace_buffer={"filter": {"min_reward": 0.5}, "timeout_s": 9.0})
    buffer = resolved_settings(config, AgentChoice("m"), EvaluationPlan((), retrieval_prob=0.5))["step_trace_buffer"]
    assert buffer["filter"]["min_reward"] == 0.5 and buffer["selection"] == "nearest" and "timeout_s" not in buffer


def test_a_module_beside_the_job_is_found_in_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = folder / "job"
    job.mkdir()
    (job / "env_beside_the_job.py").write_text("class Own:\n    pass\n")
    with monkeypatch.context() as there:
        there.syspath_prepend(str(job))
        env = importlib.import_module("env_beside_the_job").Own
        name = checkpoint(folder / "a", RAPOConfig().environment(env))
    monkeypatch.delitem(sys.modules, "env_beside_the_job")
    with pytest.raises(ValueError, match=r"No module named 'env_beside_the_job'\. Run the command in the folder of the job"):
        settings_of([AgentChoice(name)])
    monkeypatch.chdir(job)
    assert settings_of([AgentChoice(name)])


def test_a_key_is_sent_to_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ["http://a:1/v1#m", "https://b/v1#m", "https://b/v1#n", "folder"]
    monkeypatch.delenv("AGENT_API_KEY", raising=False)
    assert [one.key_variable for one in chosen_models(models, None, [], {})] == [*["AGENT_API_KEY"] * 3, ""]
    monkeypatch.setenv("AGENT_API_KEY", "k")
    assert len(chosen_models(models[1:], None, [], {})) == 3
    with pytest.raises(ValueError, match=r"the key in AGENT_API_KEY would be sent to a:1 and b: .* --agent-key-env HOST=VAR"):
        chosen_models(models, None, [], {})
    named = chosen_models(models, None, ["a:1=KEY_OF_A"], {})
    assert [one.key_variable for one in named] == ["KEY_OF_A", "AGENT_API_KEY", "AGENT_API_KEY", ""]
    with pytest.raises(ValueError, match="--agent-key-env c=K: endpoints are at a:1, b"):
        chosen_models(models[:2], None, ["c=K"], {})

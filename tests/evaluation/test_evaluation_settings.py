"""One source of settings for all models of an evaluation, and what of a run it takes over."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from rapo_rllib import RAPO, RAPOConfig
from rapo_rllib.agents.endpoint import EndpointOptions
from rapo_rllib.agents.setup import AgentChoice
from rapo_rllib.checkpoints.folder import atomic_directory
from rapo_rllib.cli.evaluate.choices import chosen_models, configs_of, env_overrides
from rapo_rllib.envs.benchmarks import BENCHMARKS
from rapo_rllib.evaluation.models import AskedBenchmark, for_benchmarks, model_settings

ASKED = (AskedBenchmark(BENCHMARKS["gsm8k"], ()),)


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


def endpoint(**extra: Any) -> AgentChoice:
    return AgentChoice("http://127.0.0.1:1/v1#m", endpoint=EndpointOptions("http://127.0.0.1:1/v1", "m", extra=extra))


def configs(choices: list[AgentChoice], **overrides: Any) -> list[RAPOConfig]:
    return configs_of({choice.short_name: choice for choice in choices}, ASKED, None, [*overrides.items()])


def settings_of(choices: list[AgentChoice], **overrides: Any) -> list[dict[str, Any]]:
    found = zip(configs(choices, **overrides), choices, strict=True)
    return [model_settings(config, choice, ASKED) for config, choice in found]


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
    choices = [*map(AgentChoice, names), endpoint()]
    changed = {"env_config.reward.correct": 2}
    for settings in settings_of(choices, **changed):
        assert (settings["temperature"], settings["max_response_tokens"], settings["tools"]) == (
            0.7,
            512,
            {"gsm8k": ["python"]},
        )
        assert settings["env_config"] == {"max_tool_calls": 7, "reward": {"format": 0.5, "correct": 2}, "scorer": "auto"}
        assert settings["protocol"]["question_template"] == "{question}?"
    said = capsys.readouterr().err
    trusted = [config.settings.model.trust_remote_code for config in configs(choices, **changed)]
    assert trusted == [False, True, False, True]
    assert (
        "b: is asked with the settings of the first checkpoint; those of its own run differ in env_config.max_tool_calls, "
        in said
    )
    for name in ("env_config.reward.format", "max_response_tokens", "protocol.question_template", "temperature", "tools.gsm8k"):
        assert name in said
    assert said.count("\n") == 1


def test_what_an_environment_of_ones_own_means_by_its_keys_is_not_taken_over() -> None:
    base = RAPOConfig().environment("CartPole-v1", env_config={"reward": "theirs", "tools": 3})
    assert for_benchmarks(base).env_config == {}


@pytest.mark.parametrize("key", ["env_config.max_tool_cals", "env_config.limit_test", "env_config.dataset"])
def test_an_override_that_nobody_reads_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=rf"--set {key}: benchmarks bring their own environment"):
        env_overrides([("lr", 1.0), ("env_config.scorer", "qa"), (key, 1)])


def test_what_decides_the_answers_is_all_there(folder: Path) -> None:
    choice = AgentChoice(checkpoint(folder / "a", RAPOConfig()))
    before = settings_of([choice])
    for changed in ({"engine.dtype": "float16"}, {"engine.extra.seed": 7}, {"env_config.scorer": "qa"}, {"max_steps": 3}):
        assert settings_of([choice], **changed) != before
    assert settings_of([choice], **{"env_config.tools": []})[0]["tools"] == {"gsm8k": []}
    checkpoint(folder / "a", RAPOConfig().training(lr=1e-3))  # another one in its place
    assert settings_of([choice]) != before
    assert settings_of([endpoint()]) != settings_of([endpoint(top_p=0.1)])
    config = RAPOConfig().training(step_trace_buffer={"filter": {"question": "other"}, "timeout_s": 9.0})
    found = model_settings(config, AgentChoice("m", retrieval_prob=0.5), ())
    buffer = found["step_trace_buffer"]
    assert buffer["filter"]["question"] == "other" and buffer["selection"] == "nearest" and "timeout_s" not in buffer
    assert (found["retrieval_prob"], found["retrieval_level"]) == (0.5, "step")


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

    def variables(*given: str, models: list[str] = models) -> dict[str, str]:
        chosen = chosen_models(models, given, {}).items()
        return {name: one.endpoint.key_variable for name, one in chosen if one.endpoint}

    monkeypatch.delenv("AGENT_API_KEY", raising=False)
    assert variables() == dict.fromkeys(("m", "m (2)", "n"), "AGENT_API_KEY")
    monkeypatch.setenv("AGENT_API_KEY", "k")
    assert len(variables(models=models[1:])) == 2
    with pytest.raises(ValueError, match=r"the key in AGENT_API_KEY would be sent to a:1 and b: .* --agent-key-env HOST=VAR"):
        variables()
    assert variables("a:1=KEY_OF_A") == {"m": "KEY_OF_A", "m (2)": "AGENT_API_KEY", "n": "AGENT_API_KEY"}
    with pytest.raises(ValueError, match="--agent-key-env c=K: endpoints are at a:1, b"):
        variables("c=K", models=models[:2])

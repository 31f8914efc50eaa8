"""Every file in ``tuned_examples/`` is a valid job; those for this machine pass their preflight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rapo_rllib import RAPOConfig

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "tuned_examples").glob("*.yaml"))


def configs(path: Path) -> list[dict[str, Any]]:
    return [experiment["config"] | {"env": experiment["env"]} for experiment in yaml.safe_load(path.read_text()).values()]


def first_choice(value: Any) -> Any:
    """The first point of a grid."""
    return value["grid_search"][0] if isinstance(value, dict) and "grid_search" in value else value


def made(config: dict[str, Any]) -> RAPOConfig:
    return RAPOConfig().update_from_dict({key: first_choice(value) for key, value in config.items()})


def test_all_are_here() -> None:
    names = {path.name for path in EXAMPLES}
    assert names >= {"rapo_math.yaml", "rapo_gsm8k.yaml", "rapo_math_7b.yaml", "grpo_math.yaml", "rapo_sweep.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_key_is_known_and_every_value_possible(path: Path) -> None:
    for config in configs(path):
        made(config).validate()


@pytest.mark.parametrize("name", ["rapo_math", "grpo_math", "rapo_sweep"])
def test_preflight(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == name)
    for config in configs(path):
        made(config).preflight()


def test_the_gsm8k_job_on_real_rows(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rapo_rllib.question_source import expert_trajectories, questions

    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in EXAMPLES if path.stem == "rapo_gsm8k")
    (config,) = configs(path)
    math = shared_data / "math"
    files = {"dataset": str(math / "gsm8k_train.jsonl.gz"), "test_dataset": str(math / "gsm8k_test.jsonl.gz")}
    config["env_config"] = {**config["env_config"], **files, "dataset_config": None}
    config["model"] = {"name_or_path": "smollm2-135m-instruct"}
    config["step_trace_buffer"] = {"uri": "./traces.db"}
    job = made(config)
    job.preflight()
    assert (len(questions(job, "train")), len(questions(job, "test"))) == (7473, 1319)
    first = next(iter(expert_trajectories(job)))
    assert "<python>print(48/2)</python>" in first.steps[0]


def test_the_papers_settings() -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "rapo_math_7b")
    config = made(configs(path)[0])
    paper = RAPOConfig()
    for key in ("questions_per_step", "group_size", "num_hybrid", "retrieval_prob", "lr", "num_minibatches", "temperature"):
        assert getattr(config, key) == getattr(paper, key), key
    assert config.objective_settings == paper.objective_settings

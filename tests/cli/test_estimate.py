"""``rllib train file JOB --estimate``: what it says, and that it starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ray
import yaml
from cli_runs import said

from rapo_rllib.cli.train.estimating import DOES_NOT_FIT

CONFIG = {
    "model": {"autocast_dtype": None},
    "engine": {"dtype": "float32", "kv_cache_gib": 0.5},
    "retrieval_prob": 0,
    "evaluation_interval": None,
    "questions_per_step": 2,
    "group_size": 4,
    "num_hybrid": 0,
    "max_prompt_tokens": 100,
    "max_response_tokens": 50,
}
SMOLLM2 = 134_515_008


def write_job(folder: Path, **changes: object) -> str:
    path = folder / "job.yaml"
    job = {"run": "RAPO", "env": "rapo/word_problems", "stop": {"training_iteration": 3}, "config": {**CONFIG, **changes}}
    path.write_text(yaml.safe_dump({"job": job}))
    return str(path)


def estimated(path: str, *options: str, status: int = 0) -> dict:
    had_ray = ray.is_initialized()  # of another test of this process
    lines = said("train", "file", path, "--estimate", "--json", *options, status=status).splitlines()
    assert ray.is_initialized() == had_ray
    found: dict = json.loads(lines[-1])
    return found


def test_a_local_job(tmp_path: Path) -> None:
    found = estimated(write_job(tmp_path), "--set", "model.gradient_checkpointing=true")
    assert found["parameters"] == SMOLLM2
    main, *others = found["processes"]
    assert [other["name"] for other in others] == ["the rllib command", "Ray"]
    own = {part["name"]: part["num_bytes"] for part in main["host"]["parts"]}
    assert (own["weights"], own["gradients"], own["Adam's moments"]) == (4 * SMOLLM2, 4 * SMOLLM2, 8 * SMOLLM2)
    assert own["engine: keys and values (engine.kv_cache_gib)"] == 2**29
    assert main["host"]["bytes"] == sum(own.values())
    assert found["fits"][0]["needed"] == sum(process["host"]["bytes"] for process in found["processes"])
    assert found["fits"][0]["fits"]


def test_what_fits_nowhere_has_a_status_of_its_own(tmp_path: Path) -> None:
    found = estimated(write_job(tmp_path), "--set", "engine.kv_cache_gib=1000000", status=DOES_NOT_FIT)
    assert found["fits"][0]["text"].startswith("does not fit: memory of all processes: needs 1e+06 GiB")


def test_of_a_cluster_that_is_not_asked_nobody_knows(tmp_path: Path) -> None:
    """Four learners and two engines on GPUs; what each holds is in tests/estimate/."""
    changes = {"num_learners": 4, "num_gpus_per_learner": 1, "num_env_runners": 2, "num_gpus_per_env_runner": 1}
    path = write_job(tmp_path, learner_parallelism="fsdp", questions_per_step=8, weight_transfer="object_store", **changes)
    found = estimated(path, "--ray-address", "10.0.0.1:6379")
    assert {fit["fits"] for fit in found["fits"]} == {None}
    assert [fit["needed"] for fit in found["fits"] if fit["unit"] == "GPUs"] == [6]


def test_a_search_is_estimated_by_a_trial_that_the_user_chooses(tmp_path: Path) -> None:
    path = write_job(tmp_path, max_response_tokens={"grid_search": [30, 60]})
    refused = said("train", "file", path, "--estimate", status=1)
    assert "replace grid_search by one of its values (--set key=value)" in refused
    assert estimated(path, "--set", "max_response_tokens=60")["parameters"] == SMOLLM2


def test_lines_end_with_the_verdict(tmp_path: Path) -> None:
    told = said("train", "file", write_job(tmp_path), "--estimate")
    assert "134,515,008" in told and told.splitlines()[-1].startswith("fits: memory of all processes: needs ")


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["--estimate", "--set", "grup_size=4"], 1, "grup_size"),
        (["--json"], 2, "--json is for --estimate"),
        (["--gpu-gib", "80"], 2, "--gpu-gib is for --estimate"),
        (["--estimate", "--gpu-gib", "0"], 2, "0 is not at least 1"),
    ],
)
def test_mistakes(tmp_path: Path, options: list[str], status: int, told: str) -> None:
    assert told in said("train", "file", write_job(tmp_path), *options, status=status)


def test_neither_data_nor_servers_are_asked_for(tmp_path: Path) -> None:
    """The job may be for another machine: only the model's shape is read here."""
    nowhere = {"uri": "http://127.0.0.1:9", "traces": str(tmp_path / "none.jsonl")}
    path = write_job(tmp_path, num_hybrid=2, retrieval_prob=0.5, step_trace_buffer=nowhere)
    started = {"warm_start.traces": str(tmp_path / "none.jsonl"), "env_config.dataset": str(tmp_path / "none.parquet")}
    options = [option for key, value in started.items() for option in ("--set", f"{key}={value}")]
    assert estimated(path, "--set", "env=rapo/questions", *options)["parameters"] == SMOLLM2
    gone = ("--set", "model.name_or_path=/no/such/model")
    assert "model.name_or_path" in said("train", "file", path, "--estimate", *gone, status=1)


def test_other_algorithms_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text("ppo: {run: PPO, env: CartPole-v1}")
    refused = said("train", "file", str(tmp_path / "ppo.yaml"), "--estimate", status=1)
    assert "only jobs of RAPO can be estimated" in refused

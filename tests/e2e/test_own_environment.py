"""A user's own environment end to end, shortened: the text game beside its YAML file, on vLLM, Milvus Lite and SmolLM2."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import rllib
from jobs import TUNED_EXAMPLES, at, trials

pytestmark = pytest.mark.e2e


def test_the_text_game(tmp_path: Path) -> None:
    shutil.copy(TUNED_EXAMPLES / "treasure_hunt.py", tmp_path)
    (experiment,) = yaml.safe_load((TUNED_EXAMPLES / "rapo_treasure_hunt.yaml").read_text(encoding="utf-8")).values()
    experiment["stop"] = {"training_iteration": 1}
    config: dict[str, Any] = experiment["config"]
    config |= {"questions_per_step": 2, "group_size": 4, "num_hybrid": 2, "retrieval_prob": 1.0, "max_response_tokens": 200}
    config |= {"evaluation_interval": 0, "evaluate_before_training": False, "transcripts": True}
    config["learner_num_threads"] = 1  # other tests run beside it
    config["step_trace_buffer"]["max_traces"] = 40
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({"hunt": experiment}), encoding="utf-8")
    done = rllib(tmp_path, "train", "file", str(job), timeout_s=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (trial,) = trials(tmp_path)
    (result,) = trial.results
    played = trial.transcripts
    assert len(played) == 8
    assert any("<act>go " in t["text"] and "You are in the" in t["text"] for t in played)
    assert at(result, "env_runners/tools/act/calls") == sum(step["tool"] == "act" for t in played for step in t["steps"]) > 0
    assert at(result, "env_runners/retrieval/count") == sum(len(t["retrievals"]) for t in played) > 0
    assert at(result, "env_runners/episode_return_mean") == pytest.approx(sum(t["reward"] for t in played) / 8)

"""A user's own environment end to end, shortened: the text game beside its YAML file, on vLLM and Milvus Lite."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import TUNED_EXAMPLES, at, example, trained_here
from small_model import save_speaking_model

pytestmark = pytest.mark.e2e

MOVES = (("go", " kitchen"), ("go", " garden"), ("go", " library"), ("go", " garage"), ("take", " key"), ("open", " chest"))


def test_the_text_game(tmp_path: Path, smollm2: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = [("\n", "<", "act", ">", *move, " <", "/", "act", ">") for move in MOVES]
    model = save_speaking_model(tmp_path / "model", smollm2, chains)
    shutil.copy(TUNED_EXAMPLES / "treasure_hunt.py", tmp_path)
    monkeypatch.delitem(sys.modules, "treasure_hunt", raising=False)
    experiment = example("rapo_treasure_hunt.yaml")
    experiment["stop"] = {"training_iteration": 1}
    config: dict[str, Any] = experiment["config"]
    config["model"]["name_or_path"] = str(model)
    config |= {"questions_per_step": 2, "group_size": 4, "num_hybrid": 2, "retrieval_prob": 1.0, "shown_steps": "own"}
    config |= {"evaluation_interval": 0, "evaluate_before_training": False, "transcripts": True}
    config["learner_num_threads"] = 1  # other tests run beside it
    config["step_trace_buffer"]["max_traces"] = 40
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({"hunt": experiment}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    trial = trained_here(monkeypatch, "train", "file", "job.yaml")
    assert Path(sys.modules["treasure_hunt"].__file__ or "").parent == tmp_path
    (result,) = trial.results
    played = trial.transcripts
    assert len(played) == 8
    assert any("<act>go " in t["text"] and "You are in the" in t["text"] for t in played)
    assert at(result, "env_runners/tools/act/calls") == sum(step["tool"] == "act" for t in played for step in t["steps"]) > 0
    assert at(result, "env_runners/retrieval/count") == sum(len(t["retrievals"]) for t in played) > 0
    assert at(result, "env_runners/episode_return_mean") == pytest.approx(sum(t["reward"] for t in played) / 8) != 0
    assert at(result, "learners/default_policy/num_steps") == 1
    unaided = at(result, "learners/default_policy/num_unaided_trajectories")
    assert 0 < unaided <= sum(bool(t["retrievals"]) for t in played)

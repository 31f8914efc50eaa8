"""The example of an agent with a loop of its own, trained: vLLM, the `openai` client, retrieval, two iterations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import Trial, example
from small_model import save_calling_model

from rapo_rllib import RAPOConfig
from rapo_rllib.types import TokenKind

pytestmark = pytest.mark.e2e


def test_two_iterations(tmp_path: Path, smollm2: Path, ray_session: None) -> None:
    model = tmp_path / "model"
    tokenizer = save_calling_model(model, smollm2, ("calcul", "ate"), "expression", "89")
    rows = [{"question": f"{n} + 5?", "answer": f"{n} + 5 = <<{n}+5={n + 5}>>{n + 5}\n#### {n + 5}"} for n in (3, 4, 3, 7, 3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = example("rapo_agent.yaml")["config"]
    named = {"dataset": str(tmp_path / "rows.jsonl"), "dataset_config": None, "max_requests": 20}
    keys |= {
        "env": "rapo/agent",
        "env_config": {**keys["env_config"], **named},
        "model": {"name_or_path": str(model), "autocast_dtype": "float32"},
        "engine": {"dtype": "float32", "max_num_seqs": 16, "enforce_eager": True, "kv_cache_gib": 0.2},
        "step_trace_buffer": {"uri": str(tmp_path / "traces.db"), "embedder": "all-minilm-l6-v2"},
        "retrieval_prob": 1.0,
        **{"questions_per_step": 2, "group_size": 4, "num_hybrid": 2, "evaluation_interval": 0},
        **{"num_env_runners": 0, "num_learners": 0, "num_gpus_per_env_runner": 0, "num_gpus_per_learner": 0},
    }
    algorithm = RAPOConfig().update_from_dict(keys).build_algo()
    results = [algorithm.train() for _ in range(2)]
    trajectories = Trial(Path(algorithm.logdir)).transcripts
    algorithm.stop()
    assert len(trajectories) == 16 and {row["end"] for row in trajectories} <= {"answer", "length"}
    for row in trajectories:
        policy = [index for index, kind in enumerate(row["kinds"]) if kind == TokenKind.POLICY]
        assert policy == [index for step in row["steps"] for index in range(step["start"], step["stop"])]
        assert tokenizer.decode(row["token_ids"]) == row["text"]
        assert all(step["observation"] == "8" for step in row["steps"][:-1])
    assert any(row["retrievals"] for row in trajectories) and any(row["reward"] > 0 for row in trajectories)
    for result in results:
        assert result["env_runners"]["sequences_per_trajectory"] == 1
        assert result["learners"]["default_policy"]["num_steps"] >= 1

"""A job whose policy calls a tool of a real MCP server: vLLM, native calls, one iteration, evaluations before and after it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from jobs import at, short_job, trained_here
from small_model import save_calling_model

pytest.importorskip("mcp")
pytestmark = pytest.mark.e2e

SERVER = str(Path(__file__).resolve().parents[1] / "support" / "mcp_notes.py")


def test_one_iteration(tmp_path: Path, smollm2: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    tokenizer = save_calling_model(model, smollm2, ("note",), "text")
    server = {"command": sys.executable, "args": [SERVER], "state_key": "who", "sessions": 1, "start_timeout_s": 250}
    changes = {
        "model": {"name_or_path": str(model)},
        "protocol": {"format": "native"},
        "env_config": {
            "tools": [{"mcp": server, "limits": {"timeout_s": 100}}],
            "reward": {"called_tool": 0.5},  # half of the trajectories: there is something to learn
        },
        "max_prompt_tokens": 512,
        "max_response_tokens": 400,
        "temperature": 1.0,
        "num_hybrid": 0,
        "retrieval_prob": 0.0,
        "evaluation_interval": 1,
    }
    short_job(tmp_path, iterations=1, **changes)
    monkeypatch.chdir(tmp_path)
    trial = trained_here(monkeypatch, "train", "file", "job.yaml")

    rows, calls = trial.transcripts, 0
    assert len(rows) == 8
    for row in rows:
        assert '"who"' not in tokenizer.decode(row["token_ids"]), "the key is filled in for the policy"
        results = [step["observation"] for step in row["steps"] if step["tool"] == "note"]
        assert results == [" ".join(["3 + 5"] * count) for count in range(1, len(results) + 1)], "its own notes, all of them"
        calls += len(results)
    (result,) = trial.results
    assert calls == at(result, "env_runners/tools/note/calls") > 0
    assert any(row["end"] == "answer" for row in rows)
    assert at(result, "learners/default_policy/num_steps") >= 1

    evaluated = sorted((trial.folder / "held_out").glob("*.jsonl"))
    assert len(evaluated) == 2, "before and after the iteration"
    for file in evaluated:
        asked = [json.loads(line) for line in file.read_text().splitlines()]
        assert len({row["question_id"] for row in asked}) == len(asked) == 2

"""A job whose policy writes tool calls as its chat template has them: vLLM, its parser, a Python function, two iterations."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import at, short_job, trained_here
from small_model import save_calling_model

from rapo_rllib.types import TokenKind

pytestmark = pytest.mark.e2e


def test_two_iterations(tmp_path: Path, smollm2: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    tokenizer = save_calling_model(model, smollm2, ("calcul", "ator"), "expression")
    changes = {
        "model": {"name_or_path": str(model)},
        "protocol": {"format": "native"},
        "env_config": {"tools": ["calculator_function:calculator"], "scorer": "spread_rewards:right_and_spread"},
        "max_prompt_tokens": 512,
        "max_response_tokens": 600,
        "temperature": 1.0,
        "buffer_growth": "advantage",
    }
    short_job(tmp_path, **changes)
    monkeypatch.chdir(tmp_path)
    trial = trained_here(monkeypatch, "train", "file", "job.yaml")
    rows = trial.transcripts
    assert len(rows) == 16
    for row in rows:
        ids, kinds = row["token_ids"], row["kinds"]
        assert tokenizer.decode(ids) == row["text"]
        policy = [index for index, kind in enumerate(kinds) if kind == TokenKind.POLICY]
        assert policy == [index for step in row["steps"] for index in range(step["start"], step["stop"])]
        for step in row["steps"]:
            assert tokenizer.decode(ids[step["start"] : step["stop"]]).removesuffix("<|im_end|>") == step["text"]
            assert (step["tool"] == "calculator") == ("<tool_call>" in step["text"] and bool(step["observation"]))
        results = [step for step in row["steps"] if step["tool"]]
        assert row["text"].count("<tool_response>\n8\n</tool_response>") == sum(s["observation"] == "8" for s in results)
        assert row["text"].count("<|im_start|>user\nAdditional context") == len(row["retrievals"])
    calls = sum(bool(step["tool"]) for row in rows for step in row["steps"])
    assert calls == sum(at(result, "env_runners/tools/calculator/calls") for result in trial.results) > 0
    assert any(row["retrievals"] for row in rows) and any(row["end"] == "answer" for row in rows)
    for result in trial.results:
        assert at(result, "learners/default_policy/num_steps") >= 1
    answered = [row for row in rows if row["end"] == "answer"]
    assert all(row["turn_ended"] for row in answered) and any(row["format_ok"] for row in answered)
    assert all(row["format_ok"] == (row["steps"][-1]["text"].count("\\boxed{") == 1) for row in answered)

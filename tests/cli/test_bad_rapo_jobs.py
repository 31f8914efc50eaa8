"""Mistakes in RAPO jobs: one message that names the key, exit status 1, and no Ray was started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from cli_runs import refused

QUESTIONS = {"env": "rapo/questions", "env_config": {"dataset": "rows.jsonl"}}


ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?"}]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": {"name_or_path": "/no/such/model"}}, ["model.name_or_path", "/no/such/model"]),
        ({"model": {"name_or_path": "nobody/no-model"}}, ["model.name_or_path", "nobody/no-model", "cannot be loaded"]),
        ({"model": {"nam_or_path": "x"}}, ["'model.nam_or_path'", "did you mean 'model.name_or_path'"]),
        ({"grup_size": 4}, ["'config.grup_size'", "did you mean 'config.group_size'"]),
        ({"group_size": 4, "num_hybrid": 8}, ["num_hybrid = 8 is more than group_size = 4", "lower num_hybrid"]),
        ({"questions_per_step": 1, "num_minibatches": 2}, ["num_minibatches = 2 is more than questions_per_step = 1"]),
        ({"max_tokens_per_micro_batch": 0}, ["max_tokens_per_micro_batch = 0"]),
        ({"step_trace_buffer": {"uri": "ftp://host"}}, ["step_trace_buffer.uri", "ftp://host"]),
        ({"step_trace_buffer": {"uri": "http://127.0.0.1:1"}}, ["step_trace_buffer.uri", "http://127.0.0.1:1"]),
        ({"step_trace_buffer": {"uri": "./no.db", "traces": None}}, ["step_trace_buffer.traces = None", "./no.db"]),
        ({"step_trace_buffer": {"traces": "no.jsonl"}}, ["step_trace_buffer.traces", "no.jsonl"]),
        ({"env_config": {"stepps": [1, 2]}}, ["'env_config.stepps'", "did you mean 'env_config.steps'"]),
        ({"env": "rapo/word_problem"}, ["rapo/word_problem"]),
        ({**QUESTIONS, "env_config": {"dataset": "no.jsonl"}}, ["env_config.dataset", "no.jsonl"]),
        (QUESTIONS, ["rows.jsonl, row 2", "answer"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "-".join(value),
)
def test_a_bad_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, parts: list[str]) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    config = {"step_trace_buffer": {"uri": "./traces.db"}, "evaluation_interval": None, **changes}
    job = {"run": "RAPO", "env": config.pop("env", "rapo/word_problems"), "config": config}
    text = yaml.safe_dump({"job": job})
    message = refused(monkeypatch, tmp_path / "job.yaml", text, "--storage-path", "results")
    assert [part for part in ("'job'", *parts) if part not in message] == []
    assert not (tmp_path / "results").exists()

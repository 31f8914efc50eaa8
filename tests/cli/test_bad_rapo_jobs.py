"""Mistakes in RAPO jobs: one message that names the key, exit status 1, and no Ray was started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import ray
import yaml
from cli_runs import ray_was_started
from typer.testing import CliRunner

from rapo_rllib.cli.main import app

QUESTIONS = {"env": "rapo/questions", "env_config": {"dataset": "rows.jsonl"}}


def write_job(folder: Path, **changes: object) -> Path:
    config = {"step_trace_buffer": {"uri": "./traces.db"}, "evaluation_interval": None, **changes}
    env = config.pop("env", "rapo/word_problems")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"job": {"run": "RAPO", "env": env, "config": config}}))
    return path


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
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(ray, "init", ray_was_started)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    done = CliRunner().invoke(app, ["train", "file", str(write_job(tmp_path, **changes)), "--storage-path", "results"])
    assert done.exit_code == 1, done.output
    for part in ("job.yaml", "'job'", *parts):
        assert part in done.stderr, done.stderr
    assert "Starting" not in done.stdout
    assert not (tmp_path / "results").exists()


def write_rows(folder: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?"}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

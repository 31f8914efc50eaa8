"""``rllib buffer build`` with a model in an engine of our own: by its folder, and as a checkpoint; then it is trained with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run_here
from kill_job import JOB, SIZES
from sums import write_job

from rapo_rllib.agents.setup import policy_folder
from rapo_rllib.buffer.build import ensure_built
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.checkpoints.folder import atomic_directory
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import StepTrace

pytestmark = pytest.mark.e2e


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command in this process; returns what it said."""
    return lambda *arguments: "\n".join(run_here(monkeypatch, "buffer", "build", *arguments))


def stored(uri: Path, level: str = "step") -> list[StepTrace]:
    buffer = StepTraceBuffer(BufferSettings(uri=str(uri), traces=None, level=level))
    try:
        ensure_built(buffer, None)
        return list(buffer.all_traces())
    finally:
        buffer.close()


def transcripts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]


def test_a_model_answers_with_the_tools_of_the_job(build: Callable[..., str], tmp_path: Path, small_model: str) -> None:
    job = write_job(tmp_path, small_model, 4)
    output = build(str(job), "--agent", small_model, "--samples", "3", "--keep", "2", "--min-reward", "0", "--source", "random")
    rows = transcripts(tmp_path / "steps.step_traces.random")
    assert sorted(row["question_id"] for row in rows) == [f"sums-{i}" for i in range(1, 5) for _ in range(3)]
    assert all(row["tokens"] > 0 for row in rows)
    traces = stored(tmp_path / "steps.db")
    assert f"8 trajectories kept, {len(traces)} steps" in output and {trace.source for trace in traces} == {"random"}
    again = build(str(job), "--agent", small_model, "--samples", "3", "--keep", "2", "--min-reward", "0", "--source", "random")
    assert "0 stored now" in again and "tokens/s" not in again  # no engine was started


def test_a_checkpoint_answers_questions_that_are_only_seeds(
    build: Callable[..., str], tmp_path: Path, small_model: str
) -> None:
    checkpoint = tmp_path / "run" / "checkpoint_000001"
    with atomic_directory(checkpoint, iteration=1) as folder:
        shutil.copytree(small_model, folder / "policy")
    (tmp_path / "job.py").write_text(
        JOB.format(**{**SIZES, "uri": "steps.db", "model": small_model, "iterations": 1, "num_questions": 4})
    )
    where = ["--uri", str(tmp_path / "letters.db")]
    build(str(tmp_path / "job.py"), "--agent", str(checkpoint), "--samples", "4", "--keep", "1", *where)
    traces = stored(tmp_path / "letters.db", "trajectory")  # the level of this job
    assert {trace.question for trace in traces} == {f"Write a sentence about the number {i}." for i in range(4)}
    assert {trace.source for trace in traces} == {"run/checkpoint_000001"} and all(trace.reward > 0 for trace in traces)
    texts = {
        (row["question_id"], "".join(row["steps"]))
        for row in transcripts(tmp_path / "letters.step_traces.run-checkpoint_000001")
    }
    assert {(trace.question_id, trace.text) for trace in traces} <= texts
    (checkpoint / "policy" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"MODEL: .* is not complete: policy/config\.json is missing"):
        policy_folder(str(checkpoint))

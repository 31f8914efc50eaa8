"""``rllib evaluate`` with models in engines of our own: a folder, and one of our checkpoints.

A checkpoint with the settings of its run, and without retrieval: test_restored_run.py.
"""

import json
import shutil
from pathlib import Path

import pytest
from cli_runs import run_here
from sums import write_sums

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.checkpoints.folder import atomic_directory
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import StepTrace

pytestmark = pytest.mark.e2e

SMALL = (
    *("max_prompt_tokens=384", "max_response_tokens=64"),
    *("engine.enforce_eager=true", "engine.kv_cache_gib=0.2", "engine.dtype=float32"),
)


def test_with_retrieval_every_attempt_is_shown_a_trace(
    tmp_path: Path, small_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole trajectories, which are retrieved before the first step: a random model completes none."""
    checkpoint = tmp_path / "run" / "checkpoint_000001"
    with atomic_directory(checkpoint, iteration=1) as folder:
        shutil.copytree(small_model, folder / "policy")
    buffer = StepTraceBuffer(BufferSettings(uri=str(tmp_path / "steps.db"), level="trajectory"))
    buffer.create()
    buffer.insert([StepTrace("t", "What is 90 + 8?", "", "<answer>\\boxed{98}</answer>", 1.0, source="solver")])
    buffer.close()
    place = ["retrieval_level=trajectory", f"step_trace_buffer.uri={tmp_path / 'steps.db'}"]
    settings = [option for setting in (*SMALL, *place) for option in ("--set", setting)]
    data = ["-b", f"gsm8k={write_sums(tmp_path, 3)}", "-o", str(tmp_path / "out")]
    run_here(monkeypatch, "evaluate", small_model, str(checkpoint), *data, *settings, "--retrieval-prob", "1")
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    models = found["benchmarks"]["gsm8k"]["models"]
    assert list(models) == [Path(small_model).name, "run/checkpoint_000001"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    for name, numbers in models.items():
        own = [row for row in rows if row["model"] == name]
        assert (numbers["questions"], numbers["samples"], numbers["failed"], len(own)) == (3, 1, 0, 3)
        assert numbers["tokens"] == pytest.approx(sum(row["tokens"] for row in own) / 3) and numbers["tokens"] > 0
        assert found["settings"][name]["retrieval_prob"] == numbers["retrievals"] == 1.0
        assert [row["retrieved"] for row in own] == [["t"]] * 3
    texts = [{row["question_id"]: row["steps"] for row in rows if row["model"] == name} for name in models]
    assert texts[0] == texts[1]  # the same weights without sampling
    assert models["run/checkpoint_000001"]["to_first"]["difference"] == 0.0

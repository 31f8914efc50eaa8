"""What the learner benchmark compares: the same step on both sides, on exact lengths. Nothing is timed here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from learner_parts.compare import compare
from learner_parts.report import fields
from learner_parts.side import Options
from learner_parts.tokens import Batch, save_batch
from tiny_models import VOCABULARY, save_tiny_model

OPTIONS = Options("", "float32", threads=1, gradient_checkpointing="selective", trl_batch=2)


def test_batches_have_exact_lengths_and_two_outcomes(tmp_path: Path) -> None:
    model, data = save_tiny_model(tmp_path / "model"), tmp_path / "texts.jsonl.gz"
    rows = [{"question": f"t{3 + i % 6} t5", "answer": f"t{30 + i % 30} t7 t9"} for i in range(100)]
    with gzip.open(data, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    batch = Batch.load(save_batch(tmp_path / "batch.npz", str(model), 30, 20, 4, data))
    assert batch.prompt.shape == (30,) and batch.responses.shape == (4, 20)
    assert batch.prompt[:4].tolist() == [3, 5, 4, 5] and batch.responses[1][:3].tolist() == [55, 7, 9]
    assert sorted(batch.rewards.tolist()) == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="300 tokens of answers, of which 4 times 80 are needed"):
        save_batch(tmp_path / "batch.npz", str(model), 30, 80, 4, data)


@pytest.mark.slow
def test_both_sides_take_the_same_step(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    responses = generator.integers(3, VOCABULARY, (4, 12))
    np.savez(tmp_path / "batch.npz", prompt=generator.integers(3, VOCABULARY, 20), responses=responses, rewards=[0, 1, 1, 0.0])
    options = Options(**{**vars(OPTIONS), "model": str(save_tiny_model(tmp_path / "model"))})
    measured = compare(options, tmp_path / "batch.npz", pairs=2, warm_up=False)
    assert measured["gradient_norm_difference"] < 1e-3 and measured["loss_difference"] < 1e-4
    first, second = measured["rounds"]
    assert first["ours"]["gradient_norm"] > 0.1
    # 20 + 4 * 11 tokens where nothing but the prompt is shared; 4 * (20 + 12); as many as ours in whole sequences
    assert [first[side]["num_tokens"] for side in ("ours", "trl", "limit")] == [64, 128, 64]
    # the second step starts from the first one's weights, the same on both sides
    assert second["ours"]["gradient_norm"] == pytest.approx(second["trl"]["gradient_norm"], rel=1e-3)
    assert all(step["peak_bytes"] > 2**20 and step["cpu_seconds"] > 0 for step in first.values())


def test_fields_are_the_worse_of_both_shapes() -> None:
    shapes = {
        "long_prompt": {"speedup": 3.0, "peak_memory_ratio": 0.5, "share_of_limit": 0.9},
        "short_prompt": {"speedup": 1.5, "peak_memory_ratio": 0.7, "share_of_limit": 0.8},
    }
    expected = {"speedup_long_prompt": 3.0, "speedup_short_prompt": 1.5, "peak_memory_ratio": 0.7, "share_of_limit": 0.8}
    assert fields(shapes) == expected
    assert fields({}) == dict.fromkeys(expected)

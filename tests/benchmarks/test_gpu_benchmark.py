"""``benchmarks/gpu.py`` in tiny shapes: all that a CPU can run of it runs, and what it cannot says why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu import PARTS, measure
from gpu_parts import copies, job, learner, sampler, states
from gpu_parts.machine import SHAPES, Sizes
from gpu_parts.models import model_flops, row_of, visible_pairs
from gpu_parts.report import print_table
from places import SUPPORT

SMALL = replace(Sizes.small(), device="cpu", rows=(300,), batches=(2,))


@pytest.mark.parametrize("part", ["flex", "job", "sleeps"])
def test_what_needs_a_gpu_says_so(part: str) -> None:
    assert PARTS[part](SMALL)["skipped"]


def test_what_is_kept_of_a_job_is_in_its_results() -> None:
    result = json.loads((SUPPORT / "real_result.json").read_text(encoding="utf-8"))
    found = job.kept([result, result])
    assert len(found.pop("mismatch of each iteration")) == 2
    assert {name.partition("/")[0] for name in found} == {"timers", "sync", "time_this_iter_s"}


def test_without_a_gpu_large_sizes_are_not_tried() -> None:
    found: dict[str, Any] = {}
    measure(["learner"], replace(SMALL, is_small=False), found)
    assert found["learner"]["skipped"].startswith("no CUDA device")


def test_how_fast_the_machine_is() -> None:
    found: dict[str, Any] = {}
    measure([], SMALL, found)
    assert len(found["machine"]["gemm_flops"]) == 2
    assert min(found["machine"]["gemm_flops"] + found["machine"]["copy_bytes_per_s"]) > 0


def test_sampling() -> None:
    (batch,) = sampler.measured(SMALL).values()
    assert set(batch) == {"plain, ms", "a generator for each row, ms", "hash, ms", "entropies and logprobs, ms"}
    assert all(len(found) == 2 and min(found) > 0 for found in batch.values())


def test_passes_of_rows() -> None:
    """Float32 under autocast, and bfloat16, are as exact as bfloat16 is; checkpointing changes nothing."""
    (ways,) = learner.measured(SMALL).values()
    assert len(ways) == 6
    for name, figures in ways.items():
        assert figures["gradient_error"] < 0.06, name
        assert min(figures["tokens_per_s"]) > 0
    errors = {figures["gradient_error"] for name, figures in ways.items() if name.startswith("blocks, bfloat16")}
    assert max(errors) - min(errors) < 1e-3


def test_rows_share_prefixes() -> None:
    row = row_of(2048, 320)
    alone = row_of(2048, 320, share=False)
    assert 1500 < row.num_tokens <= 2048 < alone.num_tokens
    assert row.num_loss_tokens == alone.num_loss_tokens
    assert visible_pairs(row) == int(row.mask().sum())


def test_operations_of_a_pass_by_hand() -> None:
    """Tiny: a layer has 2 * 64 * (4 + 2) * 16 + 3 * 64 * 128 = 36,864 elements, the head 64 * 320."""
    row = row_of(300, 320)
    pairs = 12 * 2 * 64 * visible_pairs(row)
    expected = 6 * row.num_tokens * 2 * 36_864 + 6 * len(row.scored_ids) * 64 * 320 + pairs
    found = model_flops(SHAPES["tiny"], row)
    assert sum(found.values()) == expected
    assert found["mlp"] == 6 * row.num_tokens * 2 * 3 * 64 * 128
    layers = sum(p.numel() for n, p in learner.model_of("tiny", torch.float32, "cpu").named_parameters() if "proj.weight" in n)
    assert layers == SHAPES["tiny"].layers * 36_864


def test_states_and_copies() -> None:
    assert states.measured(SMALL)["weights, bytes"] > 0
    found = copies.measured(SMALL)
    assert min(found["packed on the host, bytes/s"]) > 0
    assert found["CUDA IPC, bytes/s"] == {"skipped": "no CUDA device"}


def test_the_table_has_both_of_two_figures(capsys: pytest.CaptureFixture[str]) -> None:
    print_table({"part": {"a": {"b": [1234.5, 1250.0]}, "c": {"skipped": "why"}}})
    said = capsys.readouterr().out
    assert "1.23e+03, 1.25e+03" in said and "c/skipped" in said

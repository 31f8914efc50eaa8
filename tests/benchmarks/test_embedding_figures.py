"""What ``benchmarks/embedding.py`` measures, on few keys."""

from __future__ import annotations

import pytest
from embedding import EMBEDDER, TorchEncoder, measured

from rapo_rllib.embedding.local import TextEncoder


def test_both_forward_passes_are_timed() -> None:
    figures = measured([(f"{i} + {i}?", "") for i in range(256)], 3)
    by_side = figures["keys_per_s"]
    assert figures["throughput_vs_torch"] == pytest.approx(by_side["openvino"] / by_side["torch"])
    assert min(figures["throughput_vs_torch"], figures["latency_vs_torch"]) > 0


def test_the_reference_is_the_same_model_by_torch() -> None:
    reference, ours = TorchEncoder(EMBEDDER, key="embedder"), TextEncoder(EMBEDDER, key="embedder")
    assert "forward" not in vars(reference.loaded().model[0].model)
    assert reference.dtype == ours.dtype
    assert float(reference.encode(["3 + 5?"])[0] @ ours.encode(["3 + 5?"])[0]) > 0.99

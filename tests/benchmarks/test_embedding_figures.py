"""What ``benchmarks/embedding.py`` measures, on few keys."""

from __future__ import annotations

import pytest
from embedding import measured

from rapo_rllib.openvino_forward import OpenVinoForward
from rapo_rllib.text_encoder import TextEncoder


def test_both_forward_passes_are_timed_and_the_products_own_is_put_back() -> None:
    figures = measured([(f"{i} + {i}?", "") for i in range(256)], 3)
    by_side = figures["keys_per_s"]
    assert figures["throughput_vs_torch"] == pytest.approx(by_side["openvino"] / by_side["torch"])
    assert min(figures["throughput_vs_torch"], figures["latency_vs_torch"]) > 0
    assert isinstance(TextEncoder("all-minilm-l6-v2", key="embedder").loaded().model[0].model.forward, OpenVinoForward)

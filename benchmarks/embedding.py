r"""How fast keys are embedded on a CPU: the product's encoder (OpenVINO) against the same model run by torch.

    python benchmarks/embedding.py --data DATA/traces/gsm8k_train_human_calc.jsonl.gz --json embedding.json

Both are sentence-transformers with the same weights, precision and padding, and each has the batch size that suits it. They
take turns, window by window and query by query, so that a busy machine slows both. ``throughput_vs_torch`` is of windows of 256
step traces, as an import embeds them; ``latency_vs_torch`` of single keys, as a rollout asks; above 1 is faster.
Set ``OMP_NUM_THREADS``, and pin the process, to compare by cores.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.importing import ImportPlan, usable_traces
from rapo_rllib.buffer.writing import WINDOW
from rapo_rllib.embedding.local import (
    CPU_BATCH_SIZE,
    LoadedModel,
    TextEncoder,
    _pad_to_few_lengths,
    preferred_dtype,
    resolve_embedder,
)
from rapo_rllib.embedding.openvino import OpenVinoForward

Key = tuple[str, str]
EMBEDDER = "all-minilm-l6-v2"


class TorchEncoder(TextEncoder):
    """The product's encoder without OpenVINO."""

    @cached_property
    def by_torch(self) -> LoadedModel:
        """The model as it is loaded where OpenVINO cannot run it."""
        path = resolve_embedder(self.name, "embedder")
        model = SentenceTransformer(path, device="cpu", model_kwargs={"dtype": preferred_dtype("cpu")})
        _pad_to_few_lengths(model[0])
        return LoadedModel(model, "", threading.Lock(), CPU_BATCH_SIZE)

    def loaded(self) -> LoadedModel:
        """The model."""
        return self.by_torch


def seconds(embedder: Embedder, keys: list[Key]) -> float:
    """Time to embed the keys in one call."""
    start = time.perf_counter()
    embedder.encode(keys)
    return time.perf_counter() - start


def measured(keys: list[Key], singles: int) -> dict[str, Any]:
    """Both sides in turns; the first window is embedded once before, so that both have compiled most shapes."""
    sides = {"openvino": Embedder(EMBEDDER), "torch": Embedder(EMBEDDER)}
    sides["torch"].encoder = TorchEncoder(EMBEDDER, key="embedder")
    encoder = sides["openvino"].encoder
    assert isinstance(encoder, TextEncoder)
    if not isinstance(encoder.loaded().model[0].model.forward, OpenVinoForward):
        raise SystemExit("OpenVINO does not run this model here: see the warning above")
    windows: dict[str, list[float]] = {side: [] for side in sides}
    queries: dict[str, list[float]] = {side: [] for side in sides}
    for embedder in sides.values():
        embedder.encode(keys[:WINDOW])
    for first in range(0, len(keys) - WINDOW + 1, WINDOW):
        for side, embedder in sides.items():
            windows[side].append(seconds(embedder, keys[first : first + WINDOW]) / WINDOW)
    for key in keys[:singles]:
        for side, embedder in sides.items():
            queries[side].append(seconds(embedder, [key]))
    per_s = {side: 1 / median(windows[side]) for side in sides}
    ms = {side: 1000 * median(queries[side]) for side in sides}
    return {
        "dtype": encoder.dtype,
        "threads": torch.get_num_threads(),
        "keys_per_s": per_s,
        "query_ms": ms,
        "throughput_vs_torch": per_s["openvino"] / per_s["torch"],
        "latency_vs_torch": ms["torch"] / ms["openvino"],
    }


def main() -> None:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a file of recorded trajectories")
    parser.add_argument("--keys", type=int, default=2048, help="embedded window by window")
    parser.add_argument("--queries", type=int, default=300, help="embedded one by one")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    options = parser.parse_args()
    traces = islice(usable_traces(ImportPlan((options.data,)), Counter()), max(options.keys, WINDOW))
    found = measured([(trace.question, trace.history) for trace in traces], options.queries)
    for name, value in found.items():
        print(f"{name:20} {value}")
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

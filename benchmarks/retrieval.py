r"""Measures retrieval from the Step-Trace Buffer: latency, throughput and recall, by its size and the processes that ask.

    python benchmarks/retrieval.py --data DATA --cache retrieval_cache --json retrieval.json
    python benchmarks/retrieval.py --data DATA --cache retrieval_cache --sizes 10000 --real 3000       # a short form

Compared are: the owner of a Milvus Lite path in a Ray actor (``ours``), a real Milvus server 2.3.5 on this machine (``server``;
skipped unless the package ``milvus`` is installed), and the index alone in the process's own memory, without rows (``faiss``).
Every process asks one query after another, embedded already, and gets the nearest step trace
with its texts; ``ours_with_embedding`` is all of ``StepTraceBuffer.retrieve`` instead, with one thread of torch a process.

``DATA`` holds ``traces/*.jsonl.gz``. The keys of ``--real`` of their step traces are embedded by the product's own embedder; a
larger buffer is completed by copies of these with noise on their keys (``retrieval_parts/stored.py``). The queries are real
keys that are not stored. Recall is against the exact search over all keys. Embedding and filling are kept in ``--cache``.

The last line is JSON with ``ours_170k_4proc_ms`` (median of a retrieval, search and row, without embedding), ``ours_vs_faiss``
(that by faiss') and ``recall_at_1``. Target on two cores: ``ours_170k_4proc_ms`` 5 at most.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from retrieval_parts.real_keys import real_keys, real_traces
from retrieval_parts.server import milvus_server
from retrieval_parts.sides import Ours, RawFaiss, Searched, Side
from retrieval_parts.stored import Sample, exact_similarity, extended, fill
from retrieval_parts.timing import timed

from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.schema import index_kind
from rapo_rllib.settings import BufferSettings

SIDES = ("ours", "ours_with_embedding", "server", "faiss")
BIG, MANY = 170_000, 4  # the size and the number of processes that the target names
NUM_QUERIES = 500
QUERIES = {"ours": 1000, "ours_with_embedding": 60, "server": 250, "faiss": 1000}  # of each process
FILL_TIMEOUT_S = 600.0  # of writing a batch: a batch may wait for Lite to write its files anew, a minute was seen


def main() -> None:
    """Parse the command line, fill, measure, print."""
    options = parsed()
    ray.init(include_dashboard=False, logging_level="ERROR")
    traces = real_traces(options.data, options.real + NUM_QUERIES)
    keys, rate = real_keys(traces, Embedder("all-minilm-l6-v2"), options.cache)
    figures: dict[str, Any] = {"embedded_per_s": rate, "sizes": {}}
    for size in options.sizes:
        sample = extended(traces, keys, size, NUM_QUERIES)
        print(f"{size} traces, of which {sample.num_real} have real keys", flush=True)
        figures["sizes"][str(size)] = measured(sample, options)
    figures |= headline(figures["sizes"])
    text = json.dumps(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(text)


def parsed() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description="Cost of a retrieval from the Step-Trace Buffer.")
    parser.add_argument("--data", type=Path, required=True, help="folder with traces/*.jsonl.gz")
    parser.add_argument("--cache", type=Path, required=True, help="folder for embedded keys and filled buffers")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, BIG], help="step traces in the buffer")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, MANY])
    parser.add_argument("--real", type=int, default=35_000, help="keys to embed; there are 34,978")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser.parse_args()


def measured(sample: Sample, options: argparse.Namespace) -> dict[str, Any]:
    """All sides on one sample."""
    size = len(sample.traces)
    settings = BufferSettings(uri=str(options.cache / f"traces_{size}.db"))
    exact = exact_similarity(sample)
    figures: dict[str, Any] = {"traces": size, "real_keys": sample.num_real}
    sides: dict[str, Side] = {}
    buffer = StepTraceBuffer(settings)
    try:
        figures["ours_rows_per_s"] = filled(settings, sample)
        figures |= opening_times(buffer)
        sides |= {
            "ours": Searched(settings),
            "ours_with_embedding": Ours(settings),
            "faiss": RawFaiss.written(sample, options.cache),
        }
        for name in [side for side in options.sides if side in sides]:
            figures[name] = by_processes(name, sides[name], sample, exact, options.processes)
        if "server" in options.sides:
            figures |= on_server(settings, sample, exact, options)
    finally:
        buffer.close()
    return figures


def filled(settings: BufferSettings, sample: Sample) -> float | None:
    """Fill a collection by a handle that waits longer than the product's, which writes smaller batches."""
    buffer = StepTraceBuffer(replace(settings, timeout_s=FILL_TIMEOUT_S))
    try:
        return fill(buffer, sample)
    finally:
        buffer.close()


def by_processes(name: str, side: Side, sample: Sample, exact: Any, processes: list[int]) -> dict[str, Any]:
    """One side, asked by so many processes at once."""
    figures = {}
    for count in processes:
        figures[str(count)] = timed(side, sample, exact, count, QUERIES[name])
        print(f"  {name}, {count} processes: {figures[str(count)]}", flush=True)
    return figures


def opening_times(buffer: StepTraceBuffer) -> dict[str, Any]:
    """Seconds until a new owner has read a filled buffer, learned its lists, and answered."""
    buffer.close()
    buffer.embedder.encode([("", "")])
    started = time.perf_counter()
    buffer.prepare()
    times = {"opening_s": round(time.perf_counter() - started, 2)}
    print(f"  {times}", flush=True)
    return times


def on_server(settings: BufferSettings, sample: Sample, exact: Any, options: argparse.Namespace) -> dict[str, Any]:
    """A Milvus server on this machine; nothing if its package is not there."""
    with milvus_server(options.cache) as uri:
        if uri is None:
            return {}
        there = replace(settings, uri=uri)
        buffer = StepTraceBuffer(there)
        figures: dict[str, Any] = {"server_rows_per_s": filled(there, sample)}
        started = time.perf_counter()
        buffer.milvus.set_index(buffer.collection)
        figures |= {"server_index": index_kind(len(sample.traces)), "server_index_s": round(time.perf_counter() - started, 1)}
        figures["server"] = by_processes("server", Searched(there), sample, exact, options.processes)
        buffer.close()
        return figures


def headline(sizes: dict[str, Any]) -> dict[str, Any]:
    """The figures that the targets name; empty if their size or number of processes was not asked for."""
    ours, faiss = (sizes.get(str(BIG), {}).get(name, {}).get(str(MANY)) for name in ("ours", "faiss"))
    found: dict[str, Any] = {}
    if ours:
        found |= {"ours_170k_4proc_ms": ours["p50_ms"], "recall_at_1": ours["recall_at_1"]}
    if ours and faiss:
        found["ours_vs_faiss"] = round(ours["p50_ms"] / faiss["p50_ms"], 2)
    return found


if __name__ == "__main__":
    main()

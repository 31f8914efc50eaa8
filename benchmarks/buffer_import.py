r"""Measures `rllib buffer import` against embedding the same keys and nothing else.

    python benchmarks/buffer_import.py --data DATA/traces/gsm8k_train_human_calc.jsonl.gz --json buffer_import.json

Imports the first ``--traces`` step traces of a file into an empty Milvus Lite folder, as the command does (read, cut, embed,
store, index), then embeds the same keys in windows of the same size. ``ratio_vs_embedding`` is the import's speed by that of
bare embedding: what is left to 1 is all the rest. Both depend on the CPU alone, and on whether it multiplies bfloat16.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rapo_rllib.buffer.files import ImportPlan, import_traces, survey, usable_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.writing import WINDOW
from rapo_rllib.settings import BufferSettings


def peak_mib() -> float:
    """Most memory this process has held so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(file: Path, count: int, folder: Path) -> dict[str, Any]:
    """Import, then embed alone."""
    plan = ImportPlan((file,), max_traces=count)
    buffer = StepTraceBuffer(BufferSettings(uri=str(folder / "steps.db")))
    buffer.embedder.encode([("Warm up.", "")])
    report = survey(plan)
    memory: list[float] = []
    start = time.perf_counter()
    added = import_traces(buffer, plan, report, lambda progress: memory.append(peak_mib())).added
    import_s = time.perf_counter() - start
    keys = [(trace.question, trace.history) for trace, _ in zip(usable_traces(plan, Counter()), range(count), strict=False)]
    start = time.perf_counter()
    for first in range(0, len(keys), WINDOW):
        buffer.embedder.encode(keys[first : first + WINDOW])
    embedding_s = time.perf_counter() - start
    buffer.drop()
    buffer.close()
    return {
        "traces": added,
        "traces_per_s": added / import_s,
        "embedding_alone_per_s": len(keys) / embedding_s,
        "ratio_vs_embedding": embedding_s / len(keys) / (import_s / added),
        "peak_mib_after_a_quarter": memory[len(memory) // 4],
        "peak_mib": memory[-1],
    }


def main() -> None:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a file of recorded trajectories")
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options.data, options.traces, Path(folder))
    for name, value in found.items():
        print(f"{name:26} {value:.3g}" if isinstance(value, float) else f"{name:26} {value}")
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

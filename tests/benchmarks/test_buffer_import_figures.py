"""What ``benchmarks/buffer_import.py`` measures, on a few step traces."""

from __future__ import annotations

import json
from pathlib import Path

from buffer_import import measured


def test_an_import_is_measured_against_embedding_alone(tmp_path: Path) -> None:
    file = tmp_path / "solutions.jsonl"
    rows = [
        {
            "id": f"sum-{i}",
            "source": "human",
            "question": f"{i} + {i}?",
            "gold": str(2 * i),
            "segments": [
                {"type": "call", "tool": "python", "text": f"print({i} + {i})"},
                {"type": "result", "text": str(2 * i)},
                {"type": "answer", "text": str(2 * i)},
            ],
        }
        for i in range(1, 11)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = measured(file, 12, tmp_path)
    assert figures["traces"] == 12  # of the file's 20: a call and an answer each
    assert min(figures["traces_per_s"], figures["embedding_alone_per_s"]) > 0
    assert figures["peak_mib"] >= figures["peak_mib_after_a_quarter"] > 0

"""``benchmarks/served_agents.py`` with a scripted engine: every side has the same conversations, and other work is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_templates import ScriptedTurns, tokenizer_of
from served_agents import CLIENTS, compared

SIZES = {"questions": 3, "turns": 3, "rounds": 2}


class Turns(ScriptedTurns):
    """Counts runs; in those of ``longer`` it writes more."""

    longer: int | None = None
    runs = 0

    def forget_prefixes(self) -> None:
        self.runs += 1
        if self.runs - 1 == self.longer:
            self.script = lambda so_far: "and so on"


def engine_of(smollm2: Path) -> Any:
    return Turns(tokenizer_of("qwen25", smollm2), lambda so_far: "\\boxed{1}")


def test_every_side_has_the_same_conversations(smollm2: Path) -> None:
    engine = engine_of(smollm2)
    found = compared(engine, engine.tokenizer, CLIENTS, **SIZES)
    assert len(engine.requests) == (1 + len(CLIENTS)) * (1 + 2) * 3 * 3
    assert set(found["tokens_per_s"]) == {"questions", *CLIENTS} and all(len(r) == 2 for r in found["tokens_per_s"].values())
    assert found["ratio"] == found["ratios"]["shared"] > 0


def test_other_work_is_refused(smollm2: Path) -> None:
    engine = engine_of(smollm2)
    engine.longer = 1
    with pytest.raises(ValueError, match="http: q0 has other tokens than in the reference"):
        compared(engine, engine.tokenizer, ["http"], **SIZES)

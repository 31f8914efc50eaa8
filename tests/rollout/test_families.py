"""The table of families in docs/tools.md is what the code does with the templates of released models."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import PAGE, written_table

from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader

pytestmark = pytest.mark.process  # vLLM asks the machine what it is


def test_the_table_of_families(smollm2: Path) -> None:
    pytest.importorskip("trl")
    table = written_table(smollm2, vllm_call_reader)
    assert table in PAGE.read_text(encoding="utf-8"), f"run python tests/support/families.py; it is now\n{table}"

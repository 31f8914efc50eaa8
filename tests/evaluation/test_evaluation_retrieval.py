"""The buffer of an evaluation with retrieval: it must be there, and hold none of its questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.env_runner.parts import make_retriever
from rapo_rllib.evaluation.models import opened_buffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, Question, StepTrace

APPLES = "Tom has 3 apples and buys 5 more. How many apples?"


def test_a_buffer_without_the_questions_answers(tmp_path: Path) -> None:
    uri = str(tmp_path / "steps.db")
    config = RAPOConfig().training(step_trace_buffer={"uri": uri})
    asked = [Question("q", "A box holds 4 cups. How many do 6 boxes hold?", "24")]
    with pytest.raises(
        ValueError, match=r"--retrieval-prob: there is no collection 'step_traces' at .*steps\.db; name a buffer"
    ):
        opened_buffer(config.settings.buffer, asked)
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    buffer.create()
    buffer.insert([StepTrace("t", APPLES, "", "<python>3 + 5</python>", 1.0, source="solver")])
    buffer.close()
    with pytest.raises(ValueError, match="holds 1 step traces of 1 evaluation questions"):
        opened_buffer(config.settings.buffer, [*asked, Question("a", APPLES.upper(), "8")])
    opened = opened_buffer(config.settings.buffer, asked)
    try:
        (found,) = make_retriever(config.settings, opened)([HistoryQuery(question=asked[0].text, history="", question_id="q")])
    finally:
        opened.close()
    assert found is not None
    assert found.trace.id == "t"

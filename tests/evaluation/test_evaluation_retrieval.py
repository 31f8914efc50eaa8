"""The buffer of an evaluation with retrieval: it must be there, and hold none of its questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.evaluation.models import opened_retriever
from rapo_rllib.types import HistoryQuery, Question, StepTrace

APPLES = "Tom has 3 apples and buys 5 more. How many apples?"


def test_a_buffer_without_the_questions_answers(tmp_path: Path) -> None:
    settings = RAPOConfig().training(step_trace_buffer={"uri": str(tmp_path / "steps.db")}).settings
    asked = [Question("q", "A box holds 4 cups. How many do 6 boxes hold?", "24")]
    missing = r"--retrieval-prob: there is no collection 'step_traces' at .*steps\.db; name a buffer"
    with pytest.raises(ValueError, match=missing), opened_retriever(settings, 0.5, asked):
        pass
    buffer = StepTraceBuffer(settings.buffer)
    buffer.create()
    buffer.insert([StepTrace("t", APPLES, "", "<python>3 + 5</python>", 1.0, source="solver")])
    buffer.close()
    leaking = [*asked, Question("a", APPLES.upper(), "8")]
    with pytest.raises(ValueError, match="holds 1 step traces of 1 evaluation"), opened_retriever(settings, 0.5, leaking):
        pass
    with opened_retriever(settings, 0.5, asked) as retrieve:
        (found,) = retrieve([HistoryQuery(question=asked[0].text, history="", question_id="q")])
    assert found is not None and found.trace.id == "t"

"""The off-policy agents' buffer and the policy's own, read as one."""

import random

from buffer_helpers import experts

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.buffer.layered import BufferView, LayeredBuffer, grown_settings
from rapo_rllib.types import HistoryQuery, StepTrace

OLD = [trace for expert in experts(3) for trace in step_traces(expert)]
QUERY = HistoryQuery(OLD[0].question, OLD[1].history)


def own(text: str, question: str = OLD[0].question, history: str = OLD[1].history) -> StepTrace:
    return StepTrace(trace_id(question, history, text, "policy"), question, history, text, 1.0, source="policy")


def test_what_was_added_is_found_at_once_and_gone_at_once(make_buffer) -> None:
    base = make_buffer(top_k=2)
    base.create()
    base.insert(OLD)
    grown = make_buffer(**vars(grown_settings(base.settings, "steps_grown_run")))
    grown.create()
    both = LayeredBuffer(make_buffer(top_k=2))

    (hits,) = both.retrieve([QUERY], 2)
    assert hits[0].trace.id == OLD[1].id and len(hits) == 2
    both.set_view(BufferView("steps_grown_run", 0))
    assert both.retrieve([QUERY], 2) == [hits]

    grown.insert([own("Nearest."), own("Elsewhere.", "What is the capital of France?", "")])
    both.set_view(BufferView("steps_grown_run", 1))
    (after,) = both.retrieve([QUERY], 2)
    assert [hit.trace.text for hit in after] == [OLD[1].text, "Nearest."]  # equal keys: the off-policy agent's first
    assert after[0].similarity == after[1].similarity

    seeds = [random.Random(seed) for seed in range(200)]
    everything = [*(trace.id for trace in OLD), own("Nearest.").id, own("Elsewhere.", "What is the capital of France?", "").id]
    assert sorted({trace.id for trace in both.random_traces([QUERY] * 200, seeds)}) == sorted(everything)

    grown.delete([own("Nearest.").id])
    both.set_view(BufferView("steps_grown_run", 2))
    assert both.retrieve([QUERY], 2) == [hits]
    assert base.count() == len(OLD) and grown.count() == 1
    assert both.retrieve([], 2) == []

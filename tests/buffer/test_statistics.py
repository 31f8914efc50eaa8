"""The numbers of ``stats``, against buffers whose numbers are known."""

from dataclasses import replace

import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.statistics import statistics


def test_a_buffer_is_described(make_buffer) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(20))
    traces = [trace for expert in experts(20) for trace in step_traces(expert)]
    twin = replace(traces[0], id="twin", text="Another way.", source="other", reward=0.5)
    buffer.insert([twin])
    asked = [traces[0].question.upper(), traces[2].question, "Why is the sky blue?"]
    found = statistics(buffer, asked, LeakGuard(asked[:1]))
    assert (found.traces, found.questions, found.by_source) == (41, 20, {"solver": 40, "other": 1})
    assert found.trajectories == 21
    assert found.mean_reward_by_source == {"solver": pytest.approx(1.0), "other": 0.5}
    assert (found.asked, found.covered) == (3, 2)
    assert found.leaks == {traces[0].question: 3}


def test_an_empty_buffer_cannot_be_described(make_buffer) -> None:
    buffer = make_buffer()
    buffer.create()
    with pytest.raises(ValueError, match="is empty: there is nothing to describe"):
        statistics(buffer)

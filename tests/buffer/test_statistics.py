"""The numbers of ``stats``, against buffers whose numbers are known."""

from dataclasses import replace

import numpy as np
import pytest
from buffer_helpers import experts

from rapo_rllib.buffer import statistics as module
from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.statistics import KeySample, spread, statistics


def test_spread() -> None:
    found = spread([0.0, 0.5, 1.0, 3.0])
    assert (found["mean"], found["median"], found["min"], found["max"]) == (1.125, 0.75, 0.0, 3.0)


def test_a_buffer_is_described(make_buffer) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(20))
    traces = [trace for expert in experts(20) for trace in step_traces(expert)]
    twin = replace(traces[0], id="twin", text="Another way.", source="other", reward=0.5)
    buffer.insert([twin])
    asked = [traces[0].question.upper(), traces[2].question, "Why is the sky blue?"]
    seen = []
    found = statistics(buffer, asked, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(41, 41)]
    assert (found.traces, found.questions, found.by_source) == (41, 20, {"solver": 40, "other": 1})
    assert found.trajectories == 21
    assert found.mean_reward_by_source == {"solver": pytest.approx(1.0), "other": 0.5}
    assert found.spreads["characters of a step"]["max"] == max(len(trace.text) for trace in [*traces, twin])
    assert found.near_sample == 41 and found.near_duplicates >= 2  # the twins
    assert found.spreads["cosine to the nearest other key"]["max"] == pytest.approx(1.0, abs=1e-3)
    assert (found.asked, found.covered) == (3, 2)
    similar = found.spreads["cosine of a training question to the nearest key"]
    assert similar["max"] > 0.99 > similar["min"]


def test_neighbours_are_those_of_the_whole_matrix(make_buffer, monkeypatch) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(30))
    ((_, vectors),) = buffer.pages_with_keys()
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -1)
    monkeypatch.setattr(module, "ASKED", 7)
    assert statistics(buffer).spreads["cosine to the nearest other key"] == pytest.approx(spread(similar.max(axis=1)), abs=1e-5)


def test_a_sample_is_of_the_whole_stream_and_the_same_every_time() -> None:
    samples = [KeySample[int](size=5) for _ in range(2)]
    for sample in samples:
        for page in (range(8), range(8, 40)):
            sample.offer(list(page), np.arange(len(page), dtype=np.float32)[:, None])
    first, second = samples
    assert first.items == second.items and len(set(first.items)) == len(first.vectors) == 5 and max(first.items) >= 8


def test_an_empty_buffer_cannot_be_described(make_buffer) -> None:
    buffer = make_buffer()
    buffer.create()
    with pytest.raises(ValueError, match="is empty: there is nothing to describe"):
        statistics(buffer)

"""The numbers of ``stats``, against buffers whose numbers are known."""

from dataclasses import replace

import numpy as np
import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.neighbours import KeySample, nearest_others
from rapo_rllib.buffer.statistics import spread, statistics, trajectory_lengths
from rapo_rllib.buffer.usage import TraceUsage


@pytest.mark.parametrize(
    ("by_index", "expected"),
    [({0: 3, 1: 3, 2: 1}, {2: 2, 3: 1}), ({0: 5}, {1: 5}), ({}, {}), ({0: 2, 1: 3}, {2: 3})],
)
def test_trajectory_lengths(by_index, expected) -> None:
    assert trajectory_lengths(by_index) == expected


def test_spread() -> None:
    found = spread([0.0, 0.5, 1.0, 3.0], (0.0, 1.0))
    assert (found.mean, found.quantiles["median"], found.quantiles["max"]) == (1.125, 0.75, 3.0)
    assert (sum(found.counts), found.counts[0], found.counts[-1], found.edges[-1]) == (4, 1, 2, 1.0)
    assert spread([]) is None


def test_a_buffer_is_described(make_buffer) -> None:
    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(20))
    traces = [trace for expert in experts(20) for trace in step_traces(expert)]
    twin = replace(traces[0], id="twin", text="Another way.", source="other", reward=0.5)
    buffer.insert([twin])
    buffer.usage.write(
        "run", {traces[1].id: TraceUsage(8, 0.5), traces[2].id: TraceUsage(2, -0.7), "gone": TraceUsage(1, -9.0)}
    )
    asked = [traces[0].question.upper(), traces[2].question, "Why is the sky blue?"]
    seen = []
    found = statistics(buffer, asked, ranked=2, on_progress=lambda *counts: seen.append(counts))
    assert seen == [(41, 82), (82, 82)]
    assert (found.traces, found.questions, found.by_source) == (41, 20, {"solver": 40, "other": 1})
    assert found.steps_per_trajectory == {1: 1, 2: 20}
    assert found.mean_reward_by_source == {"solver": 1.0, "other": 0.5}
    assert found.text_length.quantiles["max"] == max(len(trace.text) for trace in [*traces, twin])
    assert found.near_sample == 41 and found.near_duplicates >= 2  # the twins
    assert found.near_similarity.quantiles["max"] == pytest.approx(1.0, abs=1e-3)
    assert (found.coverage.questions, found.coverage.covered, found.coverage.sampled) == (3, 2, 3)
    assert found.coverage.similarity.quantiles["max"] > 0.99 > found.coverage.similarity.quantiles["min"]
    assert found.used == 3
    assert [trace.id for trace in found.best] == [traces[1].id, traces[2].id]
    assert (found.best[0].uses, found.best[0].mean_reward, found.best[0].text) == (8, 0.5, traces[1].text)
    assert [trace.id for trace in found.worst] == [traces[2].id, traces[1].id]  # "gone" is not in the buffer any more


def test_neighbours_are_those_of_the_whole_matrix(make_buffer, monkeypatch) -> None:
    from rapo_rllib.buffer import neighbours, reading

    buffer = make_buffer()
    ensure_built(buffer, lambda: experts(30))
    monkeypatch.setattr(reading, "READ_PAGE", 7)
    monkeypatch.setattr(neighbours, "BLOCK", 4)
    pages = list(buffer.reader.with_keys())
    ids, vectors = [trace.id for traces, _ in pages for trace in traces], np.concatenate([page for _, page in pages])
    sample = KeySample[str](size=11)
    for traces, page in pages:
        sample.offer([trace.id for trace in traces], page)
    assert len(sample.items) == 11
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -1)
    found, asked = nearest_others(buffer, sample, ["What?"], lambda rows: None)
    np.testing.assert_allclose(found, [similar[ids.index(key)].max() for key in sample.items], atol=1e-5)
    query = buffer.embedder.encode([("What?", "")])
    np.testing.assert_allclose(asked, (query @ vectors.T).max(axis=1), atol=1e-5)


def test_an_empty_buffer_cannot_be_described(make_buffer) -> None:
    buffer = make_buffer()
    buffer.create()
    with pytest.raises(ValueError, match="is empty: there is nothing to describe"):
        statistics(buffer)

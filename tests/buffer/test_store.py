"""Insert, retrieve, count on a real Milvus Lite; what is refused; the choice among hits."""

import pickle
import socket
import time
from dataclasses import replace

import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.store import StepTraceBuffer, select
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace

TRACES = [trace for expert in experts(40) for trace in step_traces(expert)]


def query(trace: StepTrace) -> HistoryQuery:
    return HistoryQuery(trace.question, trace.history)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    buffer = StepTraceBuffer(BufferSettings(uri=str(tmp_path_factory.mktemp("store") / "steps.db")))
    buffer.create()
    assert buffer.insert(TRACES) == 80
    yield buffer
    buffer.close()


def test_every_trace_is_found_by_its_own_history(filled):
    found = filled.retrieve([query(trace) for trace in TRACES])
    assert [hits[0].trace for hits in found] == TRACES  # every field survives
    assert all(hits[0].similarity > 0.99 for hits in found)
    assert all(len(hits) == 1 for hits in found)  # the default top_k


def test_hits_come_nearest_first(filled):
    hits = filled.retrieve([HistoryQuery("Bob owns 5 coins and finds 8 more coins. How many?", "")], top_k=5)[0]
    similarities = [hit.similarity for hit in hits]
    assert len(hits) == 5
    assert similarities == sorted(similarities, reverse=True)
    assert -1 <= similarities[-1] < similarities[0] <= 1
    assert "coins" in hits[0].trace.question
    assert filled.retrieve([]) == []


def test_importing_again_changes_nothing(filled):
    seen = []
    assert filled.insert(TRACES[:70], progress=seen.append) == 0
    assert seen == [64, 70]
    assert filled.count() == 80


def test_a_pickled_buffer_reads_the_same_rows(filled):
    copy = pickle.loads(pickle.dumps(filled))
    assert copy.retrieve([query(TRACES[3])])[0][0].trace == TRACES[3]
    copy.close()
    assert filled.count() == 80  # the copy's lease was its own
    assert len(pickle.dumps(filled)) < 3000


def test_long_and_odd_texts_survive(filled):
    history = "é" * 40_000 + " the end"  # 80,008 bytes: more than a VARCHAR holds
    trace = StepTrace("odd", "q\n\"'\\", history, "<think>\u2211 \U0001f600 'x' \\boxed{}</think>\x00", 0.25, source="s")
    filled.insert([trace])
    found = filled.retrieve([query(trace)])[0][0]
    assert found.similarity > 0.99
    # 65,535 bytes: 8 of " the end", 65,527 / 2 = 32,763 whole é
    assert found.trace == replace(trace, history="é" * 32_763 + " the end")


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([replace(TRACES[0], id="new", text="é" * 32_768)], r"text of row 'new' has 65536 bytes; Milvus stores 65535"),
        ([replace(TRACES[0], id="")], "a step trace needs an id and a text"),
        ([replace(TRACES[0], text="")], "a step trace needs an id and a text"),
        ([TRACES[0], replace(TRACES[0], text="other")], "two different step traces have the id"),
    ],
)
def test_what_milvus_would_refuse_is_refused_first(filled, traces, message):
    with pytest.raises(ValueError, match=message):
        filled.insert(traces)


def test_another_embedder_is_refused(filled, monkeypatch):
    other = StepTraceBuffer(BufferSettings(uri=filled.uri))
    monkeypatch.setattr("rapo_rllib.buffer.embedder.RECIPE", "question only")  # as a later version might embed
    with pytest.raises(
        ValueError, match=r"step_trace_buffer\.embedder: 'step_traces' at .*question\[:64\].* is not 'all-minilm"
    ):
        other.retrieve([query(TRACES[0])])
    other.close()


def test_a_collection_that_is_not_there_is_named(filled):
    other = StepTraceBuffer(BufferSettings(uri=filled.uri, collection="elsewhere"))
    assert not other.exists()
    assert other.count() == 0
    with pytest.raises(ValueError, match=r"there is no collection 'elsewhere' at .*steps\.db.*step_trace_buffer\.traces"):
        other.retrieve([query(TRACES[0])])
    other.close()


def test_a_foreign_collection_is_refused(filled):
    from rapo_rllib.buffer.milvus import Field

    filled.milvus.create("foreign", [Field("key")], 3)
    with pytest.raises(ValueError, match=r"step_trace_buffer\.collection: 'foreign' .* is no Step-Trace Buffer"):
        StepTraceBuffer(BufferSettings(uri=filled.uri, collection="foreign")).create()


def test_drop_and_create_again(filled):
    buffer = StepTraceBuffer(BufferSettings(uri=filled.uri, collection="short_lived"))
    buffer.create()
    buffer.insert(TRACES[:2])
    buffer.drop()
    assert not buffer.exists()
    buffer.create()
    assert buffer.count() == 0
    buffer.drop()
    buffer.close()


def test_the_index_follows_the_size(filled, monkeypatch):
    monkeypatch.setattr("rapo_rllib.buffer.milvus.EXACT_LIMIT", 10)
    filled.fit_index()
    assert filled.milvus.index_of("step_traces") in ("AUTOINDEX", "HNSW")
    assert filled.retrieve([query(TRACES[5])])[0][0].trace == TRACES[5]
    monkeypatch.undo()
    filled.fit_index()
    assert filled.milvus.index_of("step_traces") == "FLAT"
    assert filled.retrieve([query(TRACES[5])])[0][0].trace == TRACES[5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uri": "steps"}, r"step_trace_buffer\.uri: 'steps' is neither"),
        ({"uri": "ftp://host/x.db"}, r"step_trace_buffer\.uri: 'ftp://host/x\.db' is neither"),
        ({"uri": "http://"}, r"step_trace_buffer\.uri"),
        ({"selection": "best"}, r"step_trace_buffer\.selection must be one of .* got 'best'"),
        ({"top_k": 0}, r"step_trace_buffer\.top_k must be at least 1, got 0"),
        ({"timeout_s": 0.0}, r"step_trace_buffer\.timeout_s must be positive"),
        ({"collection": "a b"}, r"step_trace_buffer\.collection .* got 'a b'"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        StepTraceBuffer(BufferSettings(**settings))


def test_a_dead_server_is_named_within_seconds():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(
        RetrievalError, match=rf"Milvus at {uri} does not answer .*start the server, or correct step_trace_buffer\.uri"
    ):
        StepTraceBuffer(BufferSettings(uri=uri)).count()
    assert time.monotonic() - start < 8


def test_paths_that_cannot_be_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"step_trace_buffer\.uri: the folder .*file cannot be made"):
        StepTraceBuffer(BufferSettings(uri=str(tmp_path / "file" / "steps.db"))).create()
    (tmp_path / "old.db").write_text("a Milvus Lite 2 file")
    with pytest.raises(ValueError, match=r"step_trace_buffer\.uri: .*old\.db is a file"):
        StepTraceBuffer(BufferSettings(uri=str(tmp_path / "old.db"))).create()


def hits(*rewards: float) -> list[RetrievedTrace]:
    return [RetrievedTrace(StepTrace(str(i), "q", "", "t", r), 0.9 - i / 10) for i, r in enumerate(rewards)]


def test_select():
    found = hits(0.2, 1.0, 1.0)
    assert select(found, "nearest") is found[0]
    assert select(found, "best_reward") is found[1]  # of equal rewards the nearer
    assert select(hits(0.0, -1.0), "best_reward") is None
    assert select([], "nearest") is None
    assert select([], "best_reward") is None
    with pytest.raises(ValueError, match=r"step_trace_buffer\.selection must be one of"):
        select(found, "random")

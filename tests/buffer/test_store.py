"""Insert, retrieve, count on a real Milvus Lite; what is refused; the choice among hits."""

import socket
import time
from dataclasses import replace

import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.rows import select
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.schema import index_kind, search_effort
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace

TRACES = [trace for expert in experts(40) for trace in step_traces(expert)]


def query(trace: StepTrace) -> HistoryQuery:
    return HistoryQuery(trace.question, trace.history)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    buffer = StepTraceBuffer(BufferSettings(uri=str(tmp_path_factory.mktemp("store") / "steps.db")))
    buffer.create()
    assert buffer.insert(TRACES).added == 80
    yield buffer
    buffer.close()


@pytest.mark.parametrize("index", ["auto", "hnsw", "exact"])
def test_a_large_buffer_finds_what_a_small_one_finds(filled, monkeypatch, index):
    expected = filled.retrieve([query(trace) for trace in TRACES], 3)
    monkeypatch.setattr("rapo_rllib.milvus.lite.table.EXACT_LIMIT", 10)
    buffer = StepTraceBuffer(replace(filled.settings, index=index))
    buffer.fit_index()  # a Lite path has nothing to fit
    found = buffer.retrieve([query(trace) for trace in TRACES], 3)
    assert [[hit.trace for hit in hits] for hits in found] == [[hit.trace for hit in hits] for hits in expected]
    buffer.close()


@pytest.mark.parametrize(
    ("choice", "num_rows", "kind"),
    [("auto", 20_000, "FLAT"), ("auto", 20_001, "AUTOINDEX"), ("exact", 10**6, "FLAT"), ("hnsw", 1, "HNSW")],
)
def test_the_kind_of_index(choice, num_rows, kind):
    assert index_kind(num_rows, choice) == kind


@pytest.mark.parametrize(("choice", "top_k", "effort"), [("hnsw", 3, 128), ("hnsw", 300, 300), ("auto", 1, 200)])
def test_the_effort_of_a_search(choice, top_k, effort):
    assert search_effort(choice, top_k) == effort


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uri": "steps"}, r"step_trace_buffer\.uri: 'steps' is neither"),
        ({"uri": "ftp://host/x.db"}, r"step_trace_buffer\.uri: 'ftp://host/x\.db' is neither"),
        ({"uri": "http://"}, r"step_trace_buffer\.uri"),
        ({"uri": "http://host:19530/prefix/mine"}, r"step_trace_buffer\.uri: 'http://host:19530/prefix/mine' is neither"),
        ({"uri": "http://host:19530/mine//"}, r"step_trace_buffer\.uri: 'http://host:19530/mine//' is neither"),
        ({"uri": "http://host:19530/x.db"}, r"step_trace_buffer\.uri: 'http://host:19530/x.db' is neither"),
        ({"selection": "best"}, r"step_trace_buffer\.selection = 'best': must be one of 'nearest', 'best_reward'"),
        ({"level": "token"}, r"step_trace_buffer\.level = 'token': must be one of 'step', 'trajectory'"),
        ({"max_grown": 0}, r"step_trace_buffer\.max_grown = 0"),
        ({"growth": "always"}, r"step_trace_buffer\.growth = 'always'"),
        ({"top_k": 0}, r"step_trace_buffer\.top_k = 0: must be a whole number between 1 and 16384"),
        ({"top_k": 16_385}, r"step_trace_buffer\.top_k = 16385: must be a whole number between 1 and 16384"),
        ({"collection": "a b"}, r"step_trace_buffer\.collection = 'a b': must be letters, digits and underscores"),
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
    assert time.monotonic() - start < 60


def hits(*rewards: float) -> list[RetrievedTrace]:
    return [RetrievedTrace(StepTrace(str(i), "q", "", "t", r), 0.9 - i / 10) for i, r in enumerate(rewards)]


def test_select():
    found = hits(0.2, 1.0, 1.0)
    assert select(found, "nearest") is found[0]
    assert select(found, "best_reward") is found[1]  # of equal rewards the nearer
    assert select(hits(0.0, -1.0), "best_reward") is None
    assert select([], "nearest") is None
    assert select([], "best_reward") is None


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("way", "gone"), [("drop", range(2)), ("create", range(2))])
def test_a_drop_that_was_killed_goes_on(make_buffer, monkeypatch, way, gone):
    buffer = make_buffer()
    drop = buffer.milvus.drop
    for collections in gone:  # so many of them when it is killed
        buffer.create()
        assert buffer.insert(TRACES[:2]).added == 2
        left = iter(range(collections))

        def drop_some(collection: str, left=left) -> None:
            if next(left, None) is None:
                raise Killed
            drop(collection)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(buffer.milvus, "drop", drop_some)
            buffer.drop()
        assert buffer.note("embedder")  # by which commands know it
        assert buffer.count() == (0 if collections else 2)
        getattr(buffer, way)()
        assert buffer.count() == (2 if way == "create" and not collections else 0)
        buffer.drop()
        assert not buffer.exists() and not buffer.note("embedder")

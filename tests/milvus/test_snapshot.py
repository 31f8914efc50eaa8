"""A Lite collection in memory: an exact search's answers, one copy on a machine, never out of date for long."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from buffer_helpers import experts, wait_until
from processes import CONTEXT

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.rows import row_of
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.snapshot.cache import SnapshotCache
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace

MakeBuffer = Callable[..., StepTraceBuffer]


def traces(count: int, first: int = 0) -> list[StepTrace]:
    return [trace for expert in list(experts(first + count))[first:] for trace in step_traces(expert)]


def queries(count: int) -> list[HistoryQuery]:
    return [HistoryQuery(f"Tom has {i} apples and gets {i + 2} more. How many?", "") for i in range(count)]


def similarities(found: list[list[RetrievedTrace]]) -> list[float]:
    return [hit.similarity for hits in found for hit in hits]


def filled(make_buffer: MakeBuffer, count: int) -> StepTraceBuffer:
    buffer = make_buffer()
    buffer.create()
    buffer.insert(traces(count))
    return buffer


def versions(buffer: StepTraceBuffer) -> list[Path]:
    return [path for path in Path(f"{buffer.uri}.keys").iterdir() if path.is_dir()]


class Unasked:
    """Stands for a Milvus that must not be asked for rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, buffer: StepTraceBuffer, *methods: str) -> None:
        self.asked: list[str] = []
        for method in methods:
            monkeypatch.setattr(buffer.milvus, method, lambda *a, method=method, **k: self.asked.append(method) or [])


def test_the_same_answers_as_milvus(make_buffer: MakeBuffer) -> None:
    buffer = filled(make_buffer, 60)
    for top_k in (1, 4):
        ours = buffer.retrieve(queries(12), top_k)
        vectors = buffer.embedder.encode([(query.question, query.history) for query in queries(12)])
        theirs = buffer.milvus.search("step_traces", vectors, top_k, ["id"], 200)
        for mine, other in zip(ours, theirs, strict=True):
            assert [hit.similarity for hit in mine] == pytest.approx([hit["similarity"] for hit in other], abs=1e-5)
            assert mine[0].trace.id == other[0]["id"] or mine[0].similarity == pytest.approx(mine[-1].similarity, abs=1e-5)
    stored = {trace.id: trace for trace in buffer.all_traces()}
    assert all(stored[hit.trace.id] == hit.trace for hits in ours for hit in hits)


def test_the_server_is_not_asked_while_nothing_changed(make_buffer: MakeBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled(make_buffer, 10)
    expected = buffer.retrieve(queries(3))
    unasked = Unasked(monkeypatch, buffer, "call")
    assert buffer.retrieve(queries(3)) == expected and unasked.asked == []


def test_what_is_added_later_is_found_and_old_files_go(make_buffer: MakeBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = filled(make_buffer, 5), make_buffer()
    asked = [HistoryQuery("Zoe counts 7 zebras in the zoo. How many legs?", "")]
    first = reader.retrieve(asked)[0][0]
    new = StepTrace("zebra", asked[0].question, "", "<python>7 * 4</python>", 1.0)
    writer.insert([new])
    assert reader.retrieve(asked)[0][0] == first  # the version is looked at every few seconds
    reader._nearest.snapshots.refresh()
    assert reader.retrieve(asked)[0][0].trace == new != first.trace
    assert len(versions(reader)) == 1
    drawn = reader.random_traces(asked * 200, [random.Random(i) for i in range(200)])
    assert {trace.id for trace in drawn if trace} >= {"zebra"}


def test_only_what_is_new_is_read(make_buffer: MakeBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, everything = filled(make_buffer, 20), make_buffer()
    buffer.prepare()
    gone = next(buffer.all_traces()).id
    buffer.milvus.call("delete", buffer.collection, ids=[gone])
    buffer.insert(traces(5, first=20))
    asked: list[list[str]] = []
    pages = buffer.milvus.pages
    monkeypatch.setattr(buffer.milvus, "pages", lambda c, fields, *n: asked.append(list(fields)) or pages(c, fields, *n))
    found = buffer.retrieve(queries(12), 30)
    assert asked == [["id"]]
    assert len(buffer._nearest.snapshots.current(384)) == 49 and gone not in {hit.trace.id for hits in found for hit in hits}
    buffer._nearest.snapshots.mark_changed(rewritten=True)
    assert len(everything.retrieve(queries(12), 30)[0]) == 30
    for mine, fresh in zip(found, everything.retrieve(queries(12), 30), strict=True):
        assert {hit.trace.id: hit.trace for hit in mine} == {hit.trace.id: hit.trace for hit in fresh}


def test_a_collection_made_anew_takes_nothing_over(make_buffer: MakeBuffer) -> None:
    buffer = filled(make_buffer, 5)
    buffer.prepare()
    buffer.drop()
    buffer.create()
    assert buffer.retrieve(queries(1)) == [[]]  # nobody has said that there is anything: Milvus itself is asked
    other = traces(6)[:3]
    vectors = -buffer.embedder.encode([(trace.question, trace.history) for trace in other])
    buffer.milvus.upsert(buffer.collection, [{**row_of(trace), "parts": 0} for trace in other], vectors)
    buffer.mark_changed()
    assert all(hit.similarity < 0 for hit in buffer.retrieve(queries(1), 3)[0])


def test_a_dropped_collection_leaves_no_file_and_who_has_it_mapped_goes_on(make_buffer: MakeBuffer) -> None:
    buffer, reader = filled(make_buffer, 5), make_buffer()
    buffer.prepare()
    reader.prepare()
    mapped, folder = reader._nearest.snapshots.current(384), Path(f"{buffer.uri}.keys")
    (folder / "step_traces-1.partial").mkdir()
    for kept in ("step_traces_2-1", "step_traces_2-2.partial"):
        (folder / kept).mkdir()
    buffer.drop()
    assert {path.name for path in folder.iterdir()} == {"lock", "step_traces_2-1", "step_traces_2-2.partial"}
    assert len(mapped.found(buffer.embed(queries(1)), 3)[0]) == 3


def test_what_a_killed_writer_left_goes(make_buffer: MakeBuffer) -> None:
    buffer = filled(make_buffer, 2)
    left, others = (Path(f"{buffer.uri}.keys", name) for name in ("step_traces-0.partial", "step_traces_2-0.partial"))
    for folder in (left, others):
        folder.mkdir(parents=True)
        (folder / "rows.arrow").write_text("half")
    buffer.prepare()
    assert others.exists() and not left.exists()


def test_a_second_process_maps_what_the_first_has_written(make_buffer: MakeBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = filled(make_buffer, 5), make_buffer()
    expected = first.retrieve(queries(3))
    unasked = Unasked(monkeypatch, second, "pages")
    assert second.retrieve(queries(3)) == expected and unasked.asked == []


def read_snapshot(uri: str, barrier: Any, begun: Any, answers: Any) -> None:
    milvus = MilvusHandle(uri, uri_key="uri")
    pages, read = milvus.pages, []

    def read_slowly(*arguments: Any) -> Any:
        read.append(arguments)
        while begun.value < 3:
            time.sleep(0.01)
        time.sleep(0.5)  # whoever does not wait for this one reads, too
        return pages(*arguments)

    milvus.pages = read_slowly  # type: ignore[method-assign]
    assert milvus.count("step_traces") == 60  # it is connected
    barrier.wait(100)
    with begun.get_lock():
        begun.value += 1
    snapshot = SnapshotCache(milvus, "step_traces").current(384)
    answers.put({"rows": len(snapshot), "read": len(read), "ids": sorted(row["id"] for row in snapshot.rows(range(9)))})
    milvus.close()


def test_of_several_processes_one_writes(make_buffer: MakeBuffer) -> None:
    buffer = filled(make_buffer, 30)
    barrier, begun, queue = CONTEXT.Barrier(3), CONTEXT.Value("i", 0), CONTEXT.SimpleQueue()
    readers = [CONTEXT.Process(target=read_snapshot, args=(buffer.uri, barrier, begun, queue)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(120)
    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    answers = [queue.get() for _ in readers]
    assert sorted(answer.pop("read") for answer in answers) == [0, 0, 1]
    assert answers == [answers[0]] * 3 and answers[0]["rows"] == 60


def test_damaged_files_are_made_again(make_buffer: MakeBuffer) -> None:
    first, second = filled(make_buffer, 5), make_buffer()
    expected = first.retrieve(queries(3))
    (place,) = versions(first)
    (place / "rows.arrow").unlink()
    assert second.retrieve(queries(3)) == expected == first.retrieve(queries(3))
    assert versions(second) == [place] and (place / "rows.arrow").exists()


def test_a_disk_that_takes_no_file_and_rows_that_change(
    make_buffer: MakeBuffer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(make_buffer, 5)
    file = Path(f"{buffer.uri}.keys")
    file.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        found = buffer.retrieve(queries(3))
        assert buffer._nearest.snapshots.current(384) is None and "no snapshot" in caplog.text and len(found[0]) == 1
        file.unlink()
        buffer._nearest.snapshots.refresh()
        count = buffer.milvus.count
        monkeypatch.setattr(buffer.milvus, "count", lambda name: count(name) + 1)
        assert buffer.retrieve(queries(3)) == found and "changed while it was read" in caplog.text
        monkeypatch.setattr(buffer.milvus, "count", lambda name: count(name) - 1)
        buffer._nearest.snapshots.refresh()
        assert buffer.retrieve(queries(3)) == found
        assert versions(buffer) == []
    monkeypatch.undo()
    buffer._nearest.snapshots.refresh()
    assert len(buffer._nearest.snapshots.current(384)) == 10
    assert similarities(buffer.retrieve(queries(3))) == pytest.approx(similarities(found), abs=1e-5)


def test_threads_share_one_snapshot(make_buffer: MakeBuffer) -> None:
    buffer = filled(make_buffer, 10)
    expected, answers = buffer.retrieve(queries(4)), []
    buffer._nearest.snapshots.forget()
    threads = [threading.Thread(target=lambda: answers.append(buffer.retrieve(queries(4)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4


def test_a_large_collection_gets_an_index_meanwhile(make_buffer: MakeBuffer, caplog: pytest.LogCaptureFixture) -> None:
    buffer = filled(make_buffer, 60)
    live = buffer._nearest.snapshots
    exact = buffer.retrieve(queries(8), 2)
    live._exact_limit = 100

    def indexed() -> bool:
        live.refresh()
        return live.current(384).graph is not None

    (place,) = versions(buffer)
    (place / "graph.lock").mkdir()
    assert not indexed() and f"no index of {place} ([Errno" in caplog.text  # a file that is not there raises the same
    (place / "graph.lock").rmdir()
    (place / "graph.faiss.partial").mkdir()
    assert not indexed() and live._builder.wait(120) != 0  # its builder cannot write
    assert not indexed() and "could be built" in caplog.text
    assert buffer.retrieve(queries(8), 2) == exact

    buffer.mark_changed()
    assert wait_until(indexed, 120)
    assert similarities(buffer.retrieve(queries(8), 2)) == pytest.approx(similarities(exact), abs=1e-5)
    assert live._builder.wait(60) == 0


def test_an_explicit_hnsw_index_is_searched_itself(make_buffer: MakeBuffer) -> None:
    buffer = make_buffer(index="hnsw")
    buffer.create()
    buffer.insert(traces(20))
    buffer.fit_index()
    assert buffer.retrieve(queries(2)) and not Path(f"{buffer.uri}.keys").exists()

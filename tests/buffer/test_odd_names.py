"""Names are data: no id, source or question means anything in Milvus' expressions, on a Lite path and on a server."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rapo_rllib.buffer import store
from rapo_rllib.buffer.keys import id_of
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.cli.main import app
from rapo_rllib.settings import BufferSettings, TraceFilter
from rapo_rllib.types import HistoryQuery, StepTrace

ODD = (
    "O'Brien-3",
    'say "no"',
    "no such id'] or id in ['victim",
    'no such id"] or id in ["victim',
    "' or id != '",
    '" or id != "',
    "back\\slash",
    "ends in \\",
    "\\' or 1 == 1 or \\'",
    '\\" or 1 == 1 or \\"',
    "\\n \\x41 \\u0041 \\101",
    "two\nlines\r\n\tand a tab",
    "{x}",
    "{ids} {0} {{}} %s $meta",
    "é 漢字 \U0001f600 \u2028\u2029\u00a0\ufeff",
    "\\u6f22 漢",
    "e\u0301",
    "bell\x07 \x08 \x0c \x1b \x7f \x85",
    "nul\x00nul",
    "nul",
    " ",
    "a" * 250,
    "in [1, 2]",
    "a/0",
    "0",
    "TRUE",
)
TRACES = [
    StepTrace("victim", "Who?", "", "the victim", 1.0, question_id="victim", source="victim"),
    *(StepTrace(odd, f"Who is {odd}?", odd, f"this is {odd}", 1.0, question_id=odd, step_index=3, source=odd) for odd in ODD),
]
LONG = [replace(trace, id=trace.id[:200] + "+", text=trace.text + "é" * 30_000) for trace in TRACES[:6]]


@pytest.fixture(scope="module", params=["lite", pytest.param("server", marks=pytest.mark.milvus)])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "lite":
        return str(tmp_path_factory.mktemp("odd") / "steps.db")
    return str(request.getfixturevalue("milvus_server").uri)


@pytest.fixture
def buffer(home: str) -> Iterator[StepTraceBuffer]:
    buffer = StepTraceBuffer(BufferSettings(uri=home, collection="odd", timeout_s=60.0, index="hnsw"))  # Milvus searches
    buffer.create()
    buffer.insert([*TRACES, *LONG])
    yield buffer
    buffer.drop()
    buffer.close()


def ids(buffer: StepTraceBuffer) -> list[str]:
    return sorted(trace.id for trace in buffer.all_traces())


def test_rows_are_written_read_and_deleted_by_the_ids_that_are_theirs(
    buffer: StepTraceBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = sorted([*TRACES, *LONG], key=repr)
    assert buffer.insert([*TRACES, *LONG]).added == 0
    with monkeypatch.context() as patch:
        for page in ("READ_PAGE", "SERVER_READ_PAGE"):
            patch.setattr(store, page, 1)  # each page begins after an odd id
        assert sorted(buffer.all_traces(), key=repr) == everything
    for trace in everything:
        (row,) = buffer.milvus.get("odd", [trace.id], ["id", "source"])
        assert (row["id"], row["source"]) == (trace.id, trace.source)
    paid = [replace(trace, reward=0.5) for trace in TRACES]
    assert buffer.insert(paid).updated == len(paid)
    assert sorted(buffer.all_traces(), key=repr) == sorted([*paid, *LONG], key=repr)
    buffer.set_note("it's {a} note", {"a": 1})
    assert buffer.note("it's {a} note") == {"a": 1} and buffer.note("it's {another} note") is None
    others = [trace.id for trace in everything if trace.id != "victim"]
    for some, rest in ((others[::2], others[1::2]), (others[1::2], [])):
        for odd in some:
            buffer.delete([odd])
        assert ids(buffer) == sorted(["victim", *rest])
    buffer.delete(["victim'", "'victim'", "vic'+'tim", "no such id'] or id in ['victim", *ODD])
    assert ids(buffer) == ["victim"]


def test_filters_by_such_names_let_through_theirs_alone(buffer: StepTraceBuffer) -> None:
    def filtered(chosen: TraceFilter) -> StepTraceBuffer:
        return StepTraceBuffer(replace(buffer.settings, filter=chosen))

    same, other = filtered(TraceFilter(question="same")), filtered(TraceFilter(question="other"))
    for trace in TRACES:
        asked = [HistoryQuery(trace.question, trace.history)]
        expected = {each.id for each in (*TRACES, *LONG) if each.question == trace.question}
        assert {hit.trace.id for hit in same.retrieve(asked, 50)[0]} == expected, trace.question
        (drawn,) = same.random_traces(asked, [random.Random(1)])
        assert drawn is not None and drawn.id in expected
        assert trace.id not in {hit.trace.id for hit in other.retrieve(asked, 50)[0]}
    same.close()
    other.close()


def test_the_command_imports_them(tmp_path: Path) -> None:
    file, uri = tmp_path / "odd.jsonl", str(tmp_path / "steps.db")
    rows = [asdict(trace) for trace in TRACES]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        done = CliRunner().invoke(app, ["buffer", "import", str(file), "--uri", uri])
        assert done.exit_code == 0, done.output
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    assert ids(buffer) == sorted(id_of(trace) for trace in TRACES)
    buffer.close()

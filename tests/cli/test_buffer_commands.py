"""``rllib buffer``: what goes wrong is one line, what is deleted is asked about, what is stopped goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_runs import said
from typer.testing import CliRunner

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.cli import terminal
from rapo_rllib.cli.main import app
from rapo_rllib.embedding.local import resolve_embedder
from rapo_rllib.milvus.lite.owner import Owner
from rapo_rllib.settings import BufferSettings

SOLUTION = {"question": "3 + 5?", "gold": "8", "segments": [{"type": "answer", "text": "8"}], "source": "human"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{**SOLUTION, "id": str(i), "question": f"{i} + 5?"} for i in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.jsonl").write_text('{"what": 1}\n')
    (tmp_path / "q.jsonl").write_text('{"question": "0 + 5?"}\n')
    (tmp_path / "r.jsonl").write_text('{"answer": "5"}\n')
    return tmp_path


run = partial(said, "buffer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "gone.jsonl"], "there is no trace file gone.jsonl"),
        (["import", "b.jsonl"], "b.jsonl, line 1: fields ['what'] belong to no known format"),
        (["import", "a.jsonl", "--format", "csv"], "format must be one of ('auto', 'traces'"),
        (["import", "a.jsonl", "--format", "chat"], "a.jsonl, line 1: field 'messages' must be a list"),
        (["import", "a.jsonl", "--min-reward", "2"], "nothing to import (reward below --min-reward: 4)"),
        (["import", "a.jsonl", "--evaluation", "r.jsonl"], "r.jsonl, row 1: no question in"),
        (["import", "a.jsonl", "--evaluation", "q.txt"], "--evaluation q.txt: not a file ending in .jsonl"),
        (["import", "a.jsonl", "--evaluation", "gone.csv"], "--evaluation = 'gone.csv': there is no such file"),
        (["import", "a.jsonl", "--uri", "steps"], "'steps' is neither a Milvus Lite path"),
        (["import", "a.jsonl", "--embedder", "./gone"], "there is no sentence-transformers model in './gone'"),
        (["search", "x"], "there is no collection 'step_traces'"),
        (["stats"], "there is no collection 'step_traces'"),
        (["export", "a.csv"], "a.csv: the file's name must end in .jsonl"),
        (["drop"], "there is no collection 'step_traces'"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, arguments: list[str], message: str) -> None:
    output = run(*arguments, status=1)
    assert message in output
    assert len(output.splitlines()) == 1
    assert not (folder / "step_traces.db").exists()


def test_stopped_checked_described_and_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rapo_rllib.buffer import writing

    monkeypatch.setattr(writing, "WRITE_BATCH", 2)
    show = terminal.advance

    def interrupted(bar: Any, progress) -> None:
        show(bar, progress)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(terminal, "advance", interrupted)
        output = run("import", "a.jsonl", status=130)
    assert "Stopped after 2 step traces. The same command, run again, continues from there." in output
    assert "holds 4 step traces; 2 were added." in run("import", "a.jsonl")
    (folder / "a.jsonl").write_text((folder / "a.jsonl").read_text().replace('"gold"', '"reward": 0.5, "gold"'))
    assert "holds 4 step traces; 0 were added, 4 were updated." in run("import", "a.jsonl")

    assert json.loads(run("stats", "--evaluation", "q.jsonl", "--json", status=1))["leaks"] == {"0 + 5?": 1}
    stats = json.loads(run("stats", "--json"))
    assert (stats["traces"], stats["by_source"], stats["asked"]) == (4, {"human": 4}, 0)

    assert "Delete them?" in run("drop", input="n\n", status=1)
    drop = Owner.drop

    def killed(owner: Owner, collection: str) -> None:
        drop(owner, collection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Owner, "drop", killed)
        CliRunner().invoke(app, ["buffer", "drop", "--yes"])
    assert "Deleted." in run("drop", input="y\n")
    assert "there is no collection" in run("drop", status=1)


def test_a_buffer_of_whole_trajectories_takes_whole_ones(folder: Path) -> None:
    buffer = StepTraceBuffer(BufferSettings(uri=str(folder / "step_traces.db"), level="trajectory"))
    buffer.create()
    buffer.close()
    row = {key: value for key, value in SOLUTION.items() if key != "segments"} | {"id": "0", "steps": ["I think.", "8"]}
    (folder / "c.jsonl").write_text(json.dumps(row) + "\n")
    assert "holds 1 step traces; 1 were added." in run("import", "c.jsonl")


def test_a_buffer_is_read_without_its_embedder_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(resolve_embedder("all-minilm-l6-v2", "embedder"), folder / "minilm")
    run("import", "a.jsonl", "--embedder", "./minilm")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert "3 + 5?" in run("search", "3 + 5?", "--top-k", "1", "--uri", "../step_traces.db")
    shutil.rmtree(folder / "minilm")
    gone = f"there is no sentence-transformers model in '{folder / 'minilm'}'"
    assert gone in run("search", "3 + 5?", "--uri", "../step_traces.db", status=1)
    assert json.loads(run("stats", "--json", "--uri", "../step_traces.db"))["traces"] == 4
    assert "holds the 4 step traces" in run("export", "b.jsonl", "--uri", "../step_traces.db")

"""``rllib tools list``: the tools of a job, a server's own among them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from cli_runs import run_here
from places import SUPPORT

SERVER = {"mcp": {"command": sys.executable, "args": [str(SUPPORT / "mcp_server.py")]}}


def job(folder: Path, *tools: object, **config: object) -> str:
    keys = {"env_config": {"tools": list(tools)}, "model": {"name_or_path": "smollm2-135m-instruct"}, **config}
    (folder / "job.yaml").write_text(yaml.safe_dump({"tools": {"run": "RAPO", "env": "rapo/word_problems", "config": keys}}))
    return str(folder / "job.yaml")


@pytest.mark.process
def test_names_descriptions_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_here(monkeypatch, "tools", "list", job(tmp_path, "calculator", SERVER))
    assert said[:2] == ["calculator", ": one text, between <calculator> and </calculator>"]
    assert said[2:5] == ["add", ": Adds to the total of this session.", "    amount (integer)"]
    assert said[5] == "fail"


@pytest.mark.process
def test_schemas_as_a_template_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = job(tmp_path, "calculator", SERVER, protocol={"format": "native"})
    (said,) = run_here(monkeypatch, "tools", "list", path, "--json")
    assert [one["function"]["name"] for one in json.loads(said)] == ["calculator", "add", "fail"]


def test_no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_here(monkeypatch, "tools", "list", job(tmp_path)) == ["The policy of this job has no tools."]


def test_how_a_call_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = "calculator_function:calculator"
    said = run_here(monkeypatch, "tools", "list", job(tmp_path, function))
    form = '<calculator>expression</calculator>, or <calculator>{"expression": ...}</calculator>'
    assert said[-2:] == ["A call is written as:", f"    {form}"]
    assert run_here(monkeypatch, "tools", "list", job(tmp_path, "calculator"))[-1] == "    <calculator>text</calculator>"
    said = run_here(monkeypatch, "tools", "list", job(tmp_path, function, protocol={"format": "native"}))
    assert said[-1].startswith("A call is written as the model's chat template has calls")

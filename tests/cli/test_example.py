"""``rllib example``: the jobs that come with the package, listed, written and trained."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rapo_rllib.cli.example import examples, files_of
from rapo_rllib.cli.main import app


def said(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["example", *arguments])


def test_every_example_is_listed_with_a_line_about_it() -> None:
    lines = said("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(examples())
    assert {"rapo_math", "rapo_sweep", "rapo_pipeline"} <= set(examples()) and "treasure_hunt" not in examples()
    assert all(len(line.split()) > 5 for line in lines)
    assert [line.split()[0] for line in said("list", "--filter", "HotpotQA").stdout.splitlines()] == ["rapo_search"]


@pytest.mark.parametrize("name", ["rapo_math", "rapo_math.yaml", "rapo_pipeline.py"])
def test_get_prints_the_file(name: str) -> None:
    path = examples()[name.partition(".")[0]]
    assert said("get", name).stdout == path.read_text(encoding="utf-8")


def test_get_writes_the_file_and_the_modules_that_it_needs(tmp_path: Path) -> None:
    assert said("get", "rapo_treasure_hunt", "--to", str(tmp_path / "new")).exit_code == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"rapo_treasure_hunt.yaml", "treasure_hunt.py"}
    shop = ["rapo_tau2_retail.yaml", "tau2_retail.py", "tau2_retail_server.py", "tau2_retail_shop.py"]
    assert sorted(path.name for path in files_of(examples()["rapo_tau2_retail"])) == shop
    agents = ["rapo_agent.yaml", "calculator_agent.py", "openai_agents_agent.py"]
    assert [path.name for path in files_of(examples()["rapo_agent"])] == agents
    again = said("get", "rapo_treasure_hunt", "--to", str(tmp_path / "new"))
    assert again.exit_code == 1 and "is there already" in again.stderr
    assert said("get", "grpo_math", "--to", str(tmp_path)).stdout.split() == [str(tmp_path / "grpo_math.yaml")]


@pytest.mark.parametrize("command", ["get", "run"])
def test_a_name_that_is_none(command: str) -> None:
    done = said(command, "rapo_mth")
    assert done.exit_code == 1 and done.stderr == "rapo_mth: no such example: did you mean rapo_math?\n"
    assert "see `rllib example list`" in said(command, "zzzzzz").stderr


def test_run_trains_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.setenv("PYTHONPATH", "")
    done = said("run", "rapo_math", "--set", "group_sise=4")  # refused before anything starts
    assert done.exit_code == 1
    assert "rapo_math.yaml: experiment 'rapo-math': unknown key 'config.group_sise': did you mean" in done.stderr

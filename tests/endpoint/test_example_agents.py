"""The agents of `tuned_examples` against a scripted engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import verifiers_agent
from calculator_turns import call, solve
from places import REPOSITORY, SUPPORT
from test_agents import SETTINGS, make  # noqa: F401

from rapo_rllib.endpoint.env import AgentEnv
from rapo_rllib.types import Question


@pytest.mark.parametrize("agent", ["calculator_agent", "openai_agents_agent"])
def test_the_agents_of_the_examples(make: Any, agent: str) -> None:  # noqa: F811
    made = make("", script=lambda so_far: solve(so_far, "calculate"), env={"agent": f"{agent}:run"})
    for trajectory in made.run():
        assert (trajectory.end, trajectory.reward, trajectory.others) == ("answer", 1.0, [])
        assert [(step.tool, step.observation) for step in trajectory.steps[:2]] == [("calculate", "8"), ("calculate", "9")]
    for trajectory in make("", script=lambda so_far: call("1 / 0", "calculate"), env={"agent": f"{agent}:run"}).run():
        assert (trajectory.end, trajectory.reward, len(trajectory.steps), trajectory.others) == ("answer", 0.0, 8, [])
        assert "division by zero" in trajectory.steps[0].observation


def test_a_package_that_an_agent_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    monkeypatch.delitem(sys.modules, "openai_agents_agent", raising=False)
    with pytest.raises(ValueError, match=r"cannot import .* run `pip install 'rapo_rllib\[openai-agents\]'`"):
        AgentEnv({"dataset": "unread.jsonl", "protocol": SETTINGS, "agent": "openai_agents_agent:run"})


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter with `verifiers`, which wants other versions of `openai` and `mcp` than this one has."""
    python = os.environ.get("RAPO_VERIFIERS_PYTHON", "")
    if not python:
        pytest.skip("RAPO_VERIFIERS_PYTHON names no interpreter that has verifiers==0.4.0")
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    return python


def adds(so_far: str) -> str:
    """Call the tool of the environment, then repeat its result; without a tool, fail."""
    done = so_far.rpartition("What is ")[2]
    if result := re.search(r"<tool_response>\s*(\S+)\s*</tool_response>", done):
        return f"It is {result[1]}"
    (tool,) = set(re.findall(r'"name": "(\w*add)"', so_far))
    return json.dumps({"name": tool, "arguments": {"a": int(done.split()[0]), "b": 5}})


def test_an_environment_of_verifiers(make: Any, verifiers: str) -> None:  # noqa: F811
    seat = {"harness": {"id": "verifiers_sums"}, "runtime": {"type": "subprocess"}}
    environment = {"taskset": {"id": "verifiers_sums"}, "agent": seat}
    program = REPOSITORY / "tuned_examples" / "verifiers_agent.py"
    told = subprocess.run([verifiers, program, json.dumps(environment)], stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(row) for row in told.stdout.splitlines()]
    assert rows[1] == {"question": "What is 4 + 5?", "answer": "1"} and len(rows) == 4
    options = {"python": verifiers, "env": environment}
    made = make("", script=adds, env={"agent": "verifiers_agent:run", "agent_options": options}, group_size=1)
    asked = [Question("q1", rows[1]["question"], rows[1]["answer"]), Question("none", "What is this?", "9")]
    (played,), (refused,) = (group.trajectories for group in made.loop.run(asked))
    assert (played.end, played.reward, len(played.steps), played.others) == ("answer", 0.5, 2, [])
    assert refused.end == "error" and "IndexError" in refused.error


def test_a_process_of_verifiers_that_ends(make: Any, tmp_path: Path) -> None:  # noqa: F811
    """As where the environment is not installed: its trajectories fail, and the next has a new one."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread line\nexit 3\n")
    python.chmod(0o755)
    options = {"python": str(python), "env": {}}
    made = make("", env={"agent": "verifiers_agent:run", "agent_options": options}, group_size=1)
    for trajectory in [*made.run(), *made.run()]:
        assert trajectory.end == "error" and "has ended with status 3" in trajectory.error


def test_a_process_of_verifiers_that_writes_no_answers(tmp_path: Path) -> None:
    """It is ended, and whoever asked it hears of it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread line\necho loading\nexec sleep 600\n")
    python.chmod(0o755)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"has been ended .JSONDecodeError.* with status -9"):
            verifiers_agent.run("http://a", Question("q", "?", "0"), str(python), {"taskset": {}})

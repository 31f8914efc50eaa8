"""The python tool with ``keep_state``: variables live as long as a trajectory."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import pytest

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import ToolError
from rapo_rllib.tools.bounded import BoundedSession, BoundedTool, shared_tools
from rapo_rllib.types import Question

LOST = "(the variables of earlier calls are lost)"


@pytest.fixture
def session() -> Iterator[BoundedSession]:
    tool = shared_tools({"name": "python", "options": {"keep_state": True, "timeout_s": 1.5}})[0]
    opened = tool.session()
    yield opened
    opened.close()


def texts(session: BoundedSession, *codes: str) -> list[str]:
    return [session.run(code).text for code in codes]


def test_variables_functions_files_and_failed_calls_stay(session: BoundedSession) -> None:
    codes = [
        "x = 4",
        "def f(n): return n * x",
        "f(3)",
        "x = 5\n1 / 0",
        "f(3)",
        "open('f', 'w').write('ab')",
        "open('f').read()",
    ]
    assert texts(session, *codes) == [
        *("(no output)", "(no output)", "12", "ZeroDivisionError: division by zero (line 2)", "15", "2", "'ab'"),
    ]
    assert texts(session, "import sys\nsys.exit()", "x") == ["(no output)", "5"]


def test_a_session_that_was_killed_says_so_and_starts_afresh(session: BoundedSession) -> None:
    assert texts(session, "x = 4", "while True: pass", "x", "x = 1", "x") == [
        "(no output)",
        "TimeoutError: the code ran longer than 1.5 s",
        f"{LOST}\nNameError: name 'x' is not defined",
        "(no output)",
        "1",
    ]
    assert session.run("print('y' * 9999999)").error == "output"
    assert session.run("2").text == f"{LOST}\n2"


def test_who_has_run_code_does_not_branch(session: BoundedSession) -> None:
    assert texts(copy.deepcopy(session), "3") == ["3"]
    texts(session, "x = 4")
    with pytest.raises(ToolError, match="with keep_state a trajectory that has run code does not branch"):
        copy.deepcopy(session)
    texts(session, "while True: pass")
    with pytest.raises(ToolError, match="does not branch"):
        copy.deepcopy(session)


def test_a_call_that_was_given_up_is_not_met_by_the_next_and_ends_with_its_trajectory() -> None:
    tool = shared_tools({"name": "python", "options": {"keep_state": True, "timeout_s": 600}, "limits": {"timeout_s": 1}})[0]
    session = tool.session()
    deadline = time.monotonic() + 60
    while session.run("import time\ny = 7").error:  # a sandbox that starts
        assert time.monotonic() < deadline
    assert session.run("time.sleep(2)\nx = 5").error == "timeout"
    while (result := session.run("x")).error == "timeout":
        assert time.monotonic() < deadline
    assert result.text == "5"
    assert session.run("time.sleep(500)").error == "timeout"
    assert tool._hung == 1
    session.close()
    while tool._hung:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sessions_are_apart(session: BoundedSession) -> None:
    assert isinstance(session._tool, BoundedTool)
    other = session._tool.session()
    texts(session, "x = 4")
    assert other.run("x").error == "exception"
    assert session.run("").error == "empty"
    other.close()
    other.close()


def test_in_an_environment() -> None:
    env = ToolEnv({"tools": [{"name": "python", "options": {"keep_state": True}}]})
    for _ in range(2):
        env.reset(options={"question": Question("q", "?", "4")})
        assert "NameError" in env.step("<python>x</python>")[0]
        env.step("<python>x = 4</python>")
        assert env.step("<python>x</python>")[0] == "4"
    env.close()

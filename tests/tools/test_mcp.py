"""Tools behind real MCP servers, over stdio and HTTP: shown, called, kept apart, killed and hung."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from buffer_helpers import wait_until
from places import SUPPORT
from scripted import ScriptedEngine, env_loop, reset_when_free
from servers import Served

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import BusyError, ToolError
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.tools import shared_tools
from rapo_rllib.tools.mcp import connection, server
from rapo_rllib.types import Question, TrajectoryGroup

pytest.importorskip("mcp")
pytestmark = pytest.mark.process
SERVER = str(SUPPORT / "mcp_server.py")
QUESTION = Question("q", "Count.", "3")


def entry(timeout_s: float = 60.0, **mcp: Any) -> dict[str, Any]:
    return {"mcp": {"command": sys.executable, "args": [SERVER], **mcp}, "limits": {"timeout_s": timeout_s}}


def environment(*tools: Any) -> ToolEnv:
    env = ToolEnv({"tools": list(tools), "max_tool_calls": 20})
    begin(env)
    return env


def begin(env: ToolEnv) -> None:
    env.reset(options={"question": QUESTION})


def called(env: ToolEnv, tool: str, argument: str) -> tuple[str, str | None]:
    observation, _, terminated, _, info = env.step(f"<{tool}>{argument}</{tool}>")
    assert not terminated
    return str(observation), info["tool_error"]


def total(env: ToolEnv, amount: int) -> tuple[int, int]:
    """The total after adding, and the server's process."""
    text, error = called(env, "add", f'{{"amount": {amount}}}')
    assert error is None, text
    count, process = map(int, text.split())
    return count, process


def test_tools_are_found_with_their_schemas() -> None:
    add, fail = shared_tools(entry())
    assert (add.tag, fail.tag) == ("add", "fail")
    function = add.schema["function"]
    assert function["description"] == "Adds to the total of this session."
    assert function["parameters"]["properties"]["amount"]["type"] == "integer"
    assert function["parameters"]["required"] == ["amount"]
    again = shared_tools(entry())
    assert {each.tool.server for each in (*again, fail)} == {add.tool.server}, "one server for all environments"
    (only,) = shared_tools(entry(only=["add"]))
    assert only.tag == "add"


def test_each_trajectory_has_a_session_and_its_tools_share_it() -> None:
    one, other = environment(entry()), environment(entry())
    first, process = total(one, 2)
    second, other_process = total(other, 5)
    assert (first, second, total(one, 1)[0]) == (2, 5, 3)
    assert process != other_process
    assert called(one, "fail", "tell") == ("nothing", None)
    begin(one)
    count, fresh = total(one, 1)
    assert count == 1 and fresh not in (process, other_process)
    one.close()
    other.close()
    wait_until_gone(process, other_process, fresh)


def wait_until_gone(*processes: int) -> None:
    assert wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in processes), 60)


def test_without_state_sessions_are_shared() -> None:
    envs = [environment(entry(state="none", sessions=1)) for _ in range(3)]
    found = [total(env, 1) for env in envs]
    assert [count for count, _ in found] == [1, 2, 3] and len({process for _, process in found}) == 1
    os.kill(found[0][1], signal.SIGKILL)
    text, error = called(envs[0], "add", '{"amount": 1}')
    if error is not None:  # the death was not known yet
        assert error == "server" and "the server has died" in text
    assert total(envs[1], 1)[1] != found[0][1]


def test_a_server_that_dies_costs_its_trajectory_alone() -> None:
    one, other = environment(entry()), environment(entry())
    total(one, 1)
    total(other, 1)
    for call in ("<fail>die</fail>", '<add>{"amount": 1}</add>'):  # its total is forgotten
        with pytest.raises(ToolError, match="was lost, with the state of the trajectory: the server has died"):
            one.step(call)
    assert total(other, 1)[0] == 2
    begin(one)
    assert total(one, 1)[0] == 1


@pytest.mark.usefixtures("hang_is_short")
def test_a_hung_server_is_ended() -> None:
    env = environment(entry())
    _, process = total(env, 1)
    text, error = called(env, "fail", "stop")
    assert error == "server" and "the server has not answered within" in text
    assert called(env, "add", '{"amount": 1}')[1] == "server", "it may have hung because of the call"
    wait_until_gone(process)
    begin(env)
    assert total(env, 4)[0] == 4


@pytest.mark.usefixtures("hang_is_short")
def test_a_call_that_hangs_is_cancelled_and_its_session_goes_on() -> None:
    env = environment(entry())
    count, process = total(env, 1)
    assert called(env, "fail", "hang") == ("TimeoutError: fail: the server has not answered within 3 s", "timeout")
    assert total(env, 1) == (count + 1, process)


@pytest.mark.usefixtures("hang_is_short")
def test_a_session_with_too_many_hanging_calls_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_HUNG", 1)
    env = environment(entry(state="none", sessions=1))
    _, process = total(env, 1)
    assert called(env, "fail", "hang")[1] == "timeout"
    assert total(env, 1)[1] != process
    wait_until_gone(process)


def test_a_program_that_dies_before_a_trajectory_has_it_costs_none() -> None:
    alone = entry(sessions=9)  # no other test has its programs
    add, _ = shared_tools(alone)
    (waiting,) = add.tool.server._open
    process = int(waiting.call("add", {"amount": 5}, 60).content[0].text.split()[1])
    os.kill(process, signal.SIGKILL)
    count, other = total(environment(alone), 1)
    assert count == 1 and other != process


def test_what_a_tool_says_and_what_is_wrong_with_a_call() -> None:
    env = environment({**entry(), "limits": {"max_output_chars": 100, "timeout_s": 60}})
    assert called(env, "add", '{"amount": "x"}')[1] == "arguments"
    assert called(env, "add", "not json")[1] == "arguments"
    assert called(env, "fail", "\ud83d") == (
        "Error: the arguments of fail hold half a character, which is no Unicode",
        "arguments",
    )
    assert called(env, "fail", "raise") == ("Error executing tool fail", "exception")
    assert called(env, "fail", "shout")[0] == "!" * 100 + "\n... (output cut after 100 characters)"


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TEST_TOKEN", "s3cret")
    env = environment(entry(env_from=["MCP_TEST_TOKEN"]))
    assert called(env, "fail", "tell")[0] == "s3cret"


def rolled_out(given: dict[str, Any], script: Callable[[str], str], **settings: Any) -> tuple[TrajectoryGroup, RolloutLoop]:
    tools = {"tools": [given], "max_tool_calls": 20}
    loop = env_loop(lambda: ToolEnv(tools), ScriptedEngine(script), **settings)
    return loop.run([QUESTION])[0], loop


@pytest.mark.parametrize(
    ("mcp", "end", "failures"), [({}, "error", {}), ({"state": "none"}, "answer", {"fail/server": 3})], ids=["state", "none"]
)
def test_a_rollout_goes_on_where_servers_die(mcp: dict[str, Any], end: str, failures: dict[str, int]) -> None:
    def script(text: str) -> str:
        return "<answer>3</answer>" if "</result>" in text else "<fail>die</fail>"

    group, loop = rolled_out(entry(**mcp), script)
    loop.close()
    assert [t.end for t in group.trajectories] == [end] * 3
    assert loop.stats.tool_failures == failures


def test_trajectories_wait_for_the_sessions_of_others_and_have_none_of_their_state() -> None:
    """Twelve at once, with one thread for tools, and programs for two."""

    def script(text: str) -> str:
        return "<answer>3</answer>" if text.count("</result>") == 2 else '<add>{"amount": 1}</add>'

    group, loop = rolled_out(entry(sessions=2), script, group_size=12, tool_workers=1)
    answers = [[step.observation.split() for step in t.steps[:2]] for t in group.trajectories]
    assert [[count for count, _ in steps] for steps in answers] == [["1", "2"]] * 12
    assert len({steps[0][1] for steps in answers}) == 12
    env = ToolEnv({"tools": [entry(sessions=2)]})
    reset_when_free(env, QUESTION)  # once the trajectories' sessions have ended
    with pytest.raises(BusyError, match=r"its sessions are all taken \(mcp\.sessions\)") as busy:
        environment(entry(sessions=2)), environment(entry(sessions=2))
    env.close()
    assert busy.value.free.result(60) is None
    loop.close()


def test_over_http() -> None:
    with Served("mcp_server.py", path="/mcp") as served:
        env = environment({"mcp": {"url": served.url, "state": "none"}, "limits": {"timeout_s": 60}})
        assert total(env, 2)[0] == 2
    assert called(env, "add", '{"amount": 1}')[1] == "server"
    with pytest.raises(ToolError, match="does not begin a session"):
        env.step('<add>{"amount": 1}</add>')


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "mcp: give command or url, one of them"),
        ({"command": "a", "url": "http://b"}, "mcp: give command or url, one of them"),
        ({"comand": "a"}, "unknown key 'env_config.tools: mcp.comand': did you mean 'env_config.tools: mcp.command'"),
        ({"command": "a", "args": "b"}, "mcp.args = 'b': must be a list of texts"),
        ({"command": "a", "env": {"API_TOKEN": "abc"}}, r"mcp.env: API_TOKEN \(its value is not shown\).*named in env_from"),
        ({"command": "a", "env": ["HOME"]}, r"mcp.env = \['HOME'\]: must be a mapping of variables to texts"),
        (
            {"command": "a", "args": ["--api-key", "sk-1"]},
            r"mcp.args: --api-key \(its value is not shown\).*named in env_from",
        ),
        ({"command": "a", "args": ["--token=sk-1"]}, r"mcp.args: --token \(its value is not shown\)"),
        ({"url": "http://host/mcp?api_key=sk-1"}, r"mcp.url: api_key \(its value is not shown\).*name a variable in token_env"),
        ({"command": "a", "env_from": ["RAPO_NOT_SET"]}, "the environment variable RAPO_NOT_SET is not set"),
        ({"url": "http://me:word@host/mcp"}, "mcp.url holds a user name or a password"),
        ({"url": "http://host/mcp", "args": ["a"]}, "args, env, env_from and cwd go with command"),
        ({"command": "a", "state": "some"}, "mcp.state = 'some': must be one of trajectory, none"),
        ({"command": "a", "sessions": 0}, "mcp.sessions = 0: must be a whole number at least 1"),
        ({"command": "a", "state_end": "end"}, r"mcp.state_end = 'end': name the argument that it is called with in state_key"),
        (
            {"command": sys.executable, "args": [SERVER], "state_key": "amount", "state_end": "end"},
            r"has no tool 'end' \(mcp.state_end\): it has add, fail",
        ),
        ({"command": "/no/such/program"}, "'/no/such/program' does not answer: .*No such file"),
        ({"command": sys.executable, "args": ["-c", "import sys; sys.exit('no licence')"]}, "does not answer: .*no licence"),
        (
            {"command": "sleep", "args": ["600"], "start_timeout_s": 1},
            "'sleep 600' does not answer: it has not told its tools within",
        ),
        ({"url": "http://127.0.0.1:9/mcp"}, "'http://127.0.0.1:9/mcp' does not answer"),
        ({"command": sys.executable, "args": [SERVER], "only": ["sub"]}, r"has no tool 'sub' \(mcp.only\): it has add, fail"),
        ({"command": sys.executable, "args": [SERVER], "state_key": "who"}, r"no tool has an argument 'who' \(mcp.state_key\)"),
    ],
)
def test_bad_entries(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        shared_tools({"mcp": given})
    assert "abc" not in str(caught.value) and "word" not in str(caught.value).replace("password", "")


_HOLDS = """import sys, time
from rapo_rllib.tools.mcp.options import McpOptions
from rapo_rllib.tools.mcp.server import McpServer
from rapo_rllib.tools.mcp.server import text_of
session = McpServer(McpOptions(command=sys.executable, args=(sys.argv[1],))).session()
print(text_of(session.call("add", {"amount": 1}, 250)), flush=True)
time.sleep(600)
"""


def test_a_stopped_server_ends_with_a_process_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS, SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _, program = map(int, process.stdout.readline().split())
        os.kill(program, signal.SIGSTOP)
        process.kill()
    wait_until_gone(program)


@pytest.mark.parametrize("thread", ["this", "of the sessions"])
def test_servers_end_with_their_last_tool(thread: str) -> None:
    env: Any = environment(entry(cwd="/", state="none"))
    _, process = total(env, 1)
    env.close()
    env.itself = env  # garbage that only a collection finds
    del env
    if thread == "this":
        gc.collect()
    else:  # it must not wait there for the sessions, which end in that thread
        assert asyncio.run_coroutine_threadsafe(collection_s(), connection._loop()).result(60) < 8
    wait_until_gone(process)


async def collection_s() -> float:
    began = time.monotonic()
    gc.collect()
    return time.monotonic() - began

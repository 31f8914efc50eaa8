"""MCP servers that trajectories share: one hangs at a call of one of them; one over HTTP checks tokens, and stops."""

from __future__ import annotations

import copy
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp_http import free_port, http_servers, url_of
from scripted import ByteTokenizer, ScriptedEngine

from rapo_rllib import RAPOConfig
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import BusyError, ToolError
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.tools import shared_tools
from rapo_rllib.tools.mcp import server
from rapo_rllib.tools.mcp.server import McpSession
from rapo_rllib.types import Question

pytest.importorskip("mcp")
pytestmark = pytest.mark.process
SERVER = str(Path(__file__).resolve().parents[1] / "support" / "mcp_notes.py")
ASKED = Question("q", "Note.", "3")


def entry(timeout_s: float, **mcp: Any) -> dict[str, Any]:
    program = {} if "url" in mcp else {"command": sys.executable, "args": [SERVER]}
    given = {**program, "state_key": "who", "sessions": 1, "start_timeout_s": 250, **mcp}
    return {"mcp": given, "limits": {"timeout_s": timeout_s}}


def environment(given: dict[str, Any]) -> ToolEnv:
    env = ToolEnv({"tools": [given], "max_tool_calls": 20})
    env.reset(options={"question": ASKED})
    return env


def noted(env: ToolEnv, text: str) -> tuple[str, str | None]:
    observation, _, _, _, info = env.step(f"<note>{text}</note>")
    return str(observation), info["tool_error"]


@pytest.fixture
def hang_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that will hang has 3 s; all others keep the time of their limits, since a busy machine answers slowly."""
    call = McpSession.call

    def shorter(session: McpSession, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        return call(session, tool, arguments, 3.0 if arguments["text"] in ("hang", "stop") else timeout_s)

    monkeypatch.setattr(McpSession, "call", shorter)


@pytest.mark.usefixtures("hang_is_short")
def test_who_shares_a_session_with_calls_that_hang_goes_on(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Over stdio and HTTP: some calls hang, of that trajectory too the others do not, and the state of nobody is lost."""
    monkeypatch.setattr(server, "MOST_HUNG", 1)
    port = free_port()
    serve(port)
    for given in (entry(60), entry(60, url=url_of(port))):
        guilty, *others = (environment(given) for _ in range(4))
        assert [noted(each, "a") for each in (guilty, *others)] == [("a", None)] * 4
        with ThreadPoolExecutor(4) as pool:
            hung = pool.submit(noted, guilty, "hang")
            assert list(pool.map(noted, others, "bbb")) == [("a b", None)] * 3
            assert hung.result() == ("TimeoutError: note: the server has not answered within 3 s", "timeout")
        assert noted(guilty, "hang")[1] == "timeout" and noted(environment(given), "a") == ("a", None)
        assert [noted(each, "c") for each in others] == [("a b c", None)] * 3 and noted(guilty, "d") == ("a d", None)


@pytest.mark.usefixtures("hang_is_short")
def test_who_shares_a_session_with_a_server_that_hangs_is_told_that_it_is_lost() -> None:
    guilty, other, late = (environment(entry(60)) for _ in range(3))
    assert [noted(each, "a") for each in (guilty, other, late)] == [("a", None)] * 3
    with ThreadPoolExecutor(2) as pool:
        hung = pool.submit(noted, guilty, "stop")
        time.sleep(1)
        waits = pool.submit(other.step, "<note>b</note>")
        text, error = hung.result()
        assert error == "server" and "the server has not answered within" in text
        lost = "was lost, with the state of the trajectory: the server has not answered"
        with pytest.raises(ToolError, match=lost):
            waits.result()
    assert noted(guilty, "c")[1] == "server", "it may have hung because of the call: this trajectory goes on"
    with pytest.raises(ToolError, match=lost):
        late.step("<note>c</note>")
    fresh = environment(entry(60))
    assert noted(fresh, "d") == ("d", None)


@pytest.mark.usefixtures("hang_is_short")
@pytest.mark.parametrize(("how", "ends"), [("hang", ["answer"] * 3), ("stop", ["answer", "error", "error"])])
def test_in_a_rollout_a_server_that_hangs_costs_the_others_and_a_call_that_hangs_none(how: str, ends: list[str]) -> None:
    hung: list[bool] = []

    def script(so_far: str) -> str:
        done = so_far.count("</result>")
        if done == 1 and not hung:
            hung.append(True)
            return f"<note>{how}</note>"
        return "<answer>3</answer>" if done == 2 else f"<note>{'ab'[done]}</note>"

    tools = {"tools": [entry(60)], "max_tool_calls": 20}
    chat = make_protocol(ByteTokenizer(eos_token_id=0), ProtocolSettings(system_prompt="", examples=()), ToolEnv(tools), None)
    settings = RolloutSettings(
        group_size=3, max_response_tokens=2000, tool_workers=1
    )  # one call at a time: the others come later
    loop = RolloutLoop(ScriptedEngine(script), chat, EnvPool(lambda: ToolEnv(tools), "answer"), settings)
    (group,) = loop.run([ASKED])
    loop.close()
    assert sorted(t.end for t in group.trajectories) == ends
    failed = [[step.tool_error or "" for step in t.steps] for t in group.counted]
    assert sorted(failed)[::-1] == [["", "timeout" if how == "hang" else "server", ""], *[["", "", ""]] * (len(failed) - 1)]


@pytest.fixture
def serve() -> Iterator[Callable[..., subprocess.Popen]]:
    with http_servers(SERVER) as start:
        yield start


def test_a_server_over_http_checks_the_token(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    serve(port, NOTES_TOKEN="s3cret")
    monkeypatch.setenv("NOTES_PASS", "s3cret")
    env = environment(entry(60, url=url_of(port), token_env="NOTES_PASS"))
    assert noted(env, "a") == ("a", None)
    monkeypatch.setenv("NOTES_WRONG", "gu3ss")
    wrong = "HTTP 401 Unauthorized: the server does not take the token in the environment variable NOTES_WRONG"
    none = "HTTP 401 Unauthorized: name the environment variable that holds a token of the server in mcp.token_env"
    for given, message in (({"token_env": "NOTES_WRONG"}, wrong), ({}, none), ({"state": "none"}, none)):
        with pytest.raises(ValueError, match=f"{re.escape(url_of(port))}' does not answer: {message}") as caught:
            shared_tools(entry(60, url=url_of(port), **given))
        assert "s3cret" not in str(caught.value) and "gu3ss" not in str(caught.value)
    job = RAPOConfig().environment("rapo/word_problems", env_config={"tools": [entry(60, url=url_of(port))]})
    with pytest.raises(ValueError, match=none):
        job.training(model={"name_or_path": "smollm2-135m-instruct"}).preflight()


def test_a_path_without_a_server(serve: Callable[..., Any]) -> None:
    port = free_port()
    serve(port)
    with pytest.raises(ValueError, match=r"/other' does not answer: HTTP 404 Not Found: no MCP server has this path"):
        shared_tools(entry(60, url=url_of(port).replace("/mcp", "/other")))


def test_a_call_over_http_has_the_time_of_its_limits(serve: Callable[..., Any]) -> None:
    port = free_port()
    serve(port)
    assert noted(environment(entry(120, url=url_of(port))), "slow") == ("slow", None)


def test_a_server_over_http_that_hangs_costs_the_call_within_its_deadline(serve: Callable[..., Any]) -> None:
    port = free_port()
    process = serve(port)
    env = environment(entry(5, url=url_of(port)))
    assert noted(env, "a") == ("a", None)
    process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    text, error = noted(env, "b")
    process.send_signal(signal.SIGCONT)
    assert error == "server" and "the server has not answered within" in text
    assert time.monotonic() - start < 120


@pytest.mark.parametrize("mcp", [{}, {"state_key": None}], ids=["state key", "session"])
def test_a_server_over_http_that_was_started_again_has_forgotten(serve: Callable[..., Any], mcp: dict[str, Any]) -> None:
    """The trajectory does not go on with the empty state of the new server, at this call or a later one; a new one does."""
    port = free_port()
    first = serve(port)
    env = environment(entry(60, url=url_of(port), **mcp))
    call = "<note>{}</note>" if mcp == {} else '<note>{{"who": "me", "text": "{}"}}</note>'
    assert env.step(call.format("a"))[0] == "a" and env.step(call.format("b"))[0] == "a b"
    first.kill()
    first.wait()
    serve(port)
    for text in "cd":
        with pytest.raises(ToolError, match=r"lost, with the state of the trajectory: .*does not know the session any more"):
            env.step(call.format(text))
    while True:
        try:
            env.reset(options={"question": ASKED})
            break
        except BusyError as ending:  # the place of the lost session
            ending.free.result(60)
    assert env.step(call.format("e"))[0] == "e"


def test_in_a_rollout_a_server_that_was_started_again_costs_who_had_a_state_there(serve: Callable[..., Any]) -> None:
    port = free_port()
    running = [serve(port)]

    def script(so_far: str) -> str:
        done = so_far.count("</result>")
        if done == 1 and len(running) == 1:
            running[0].kill()
            running[0].wait()
            running.append(serve(port))
        return "<answer>3</answer>" if done == 2 else f"<note>{'ab'[done]}</note>"

    tools = {"tools": [entry(60, url=url_of(port))], "max_tool_calls": 20}
    chat = make_protocol(ByteTokenizer(eos_token_id=0), ProtocolSettings(system_prompt="", examples=()), ToolEnv(tools), None)
    settings = RolloutSettings(group_size=3, max_response_tokens=2000, tool_workers=1)
    loop = RolloutLoop(ScriptedEngine(script), chat, EnvPool(lambda: ToolEnv(tools), "answer"), settings)
    (group,) = loop.run([ASKED])
    loop.close()
    assert 1 <= loop.stats.ends["error"] <= 3 and not loop.stats.tool_failures
    assert all([step.observation for step in t.steps[:2]] == ["a", "a b"] for t in group.counted)


def test_without_sessions_nothing_would_tell_that_a_server_was_started_again(serve: Callable[..., Any]) -> None:
    port = free_port()
    first = serve(port, NOTES_STATELESS="1")
    with pytest.raises(ValueError, match=r"no session, so a restart without its state would go unnoticed.* mcp\.state: none"):
        shared_tools(entry(60, url=url_of(port)))
    env = environment(entry(60, url=url_of(port), state="none"))
    assert noted(env, "a") == ("a", None) and noted(env, "b") == ("a b", None)
    with pytest.raises(ToolError, match="keeps state, which cannot be copied"):
        copy.deepcopy(env)
    first.kill()
    first.wait()
    serve(port, NOTES_STATELESS="1")
    assert noted(env, "c") == ("c", None), "as the job wants it"

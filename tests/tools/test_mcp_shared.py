"""MCP servers that trajectories share: one hangs at a call of one of them; one over HTTP checks tokens, and stops."""

from __future__ import annotations

import copy
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from places import SUPPORT
from scripted import reset_when_free
from servers import Served

from rapo_rllib import RAPOConfig
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import ToolError
from rapo_rllib.tools import shared_tools
from rapo_rllib.tools.mcp import server
from rapo_rllib.tools.mcp.options import McpOptions
from rapo_rllib.types import Question

pytest.importorskip("mcp")
pytestmark = pytest.mark.process
ASKED = Question("q", "Note.", "3")


def entry(timeout_s: float = 60, **mcp: Any) -> dict[str, Any]:
    program = {} if "url" in mcp else {"command": sys.executable, "args": [str(SUPPORT / "mcp_notes.py")]}
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
def served() -> Iterator[Served]:
    """The same program over HTTP, when it is started."""
    made = Served("mcp_notes.py", path="/mcp")
    yield made
    made.stop()


@pytest.mark.usefixtures("hang_is_short")
def test_who_shares_a_session_with_calls_that_hang_goes_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over stdio and HTTP: some calls hang, of that trajectory too the others do not, and the state of nobody is lost."""
    monkeypatch.setattr(server, "MOST_HUNG", 1)
    served.start()
    for given in (entry(), entry(url=served.url)):
        guilty, *others = (environment(given) for _ in range(4))
        assert [noted(each, "a") for each in (guilty, *others)] == [("a", None)] * 4
        with ThreadPoolExecutor(4) as pool:
            hung = pool.submit(noted, guilty, "hang")
            assert list(pool.map(noted, others, "bbb")) == [("a b", None)] * 3
            assert hung.result() == ("TimeoutError: note: the server has not answered within 3 s", "timeout")
        assert noted(guilty, "hang")[1] == "timeout" and noted(environment(given), "a") == ("a", None)
        assert [noted(each, "c") for each in others] == [("a b c", None)] * 3 and noted(guilty, "d") == ("a d", None)


class SlowlyEnding:
    """A connection whose program needs a while to end."""

    living: ClassVar[list[Any]] = []
    tools = (SimpleNamespace(name="note", description="Note.", input_schema={"properties": {"who": {}}}),)
    lost, hung = False, 0

    def __init__(self, *_: Any) -> None:
        assert not self.living
        self.living.append(self)

    def close(self) -> None:
        time.sleep(0.2)
        self.living.clear()

    end = close


def test_another_session_begins_when_the_lost_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "McpConnection", SlowlyEnding)
    made = server.McpServer(McpOptions(command="notes", state_key="who", sessions=1))
    first = made.acquire(5.0)
    first.lost = True
    assert made.acquire(5.0) is not first and len(SlowlyEnding.living) == 1


@pytest.mark.usefixtures("hang_is_short")
def test_who_shares_a_session_with_a_server_that_hangs_is_told_that_it_is_lost() -> None:
    guilty, other, late = (environment(entry()) for _ in range(3))
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
    fresh = environment(entry())
    assert noted(fresh, "d") == ("d", None)


def test_a_server_over_http_checks_the_token(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.start(NOTES_TOKEN="s3cret")
    monkeypatch.setenv("NOTES_PASS", "s3cret")
    env = environment(entry(url=served.url, token_env="NOTES_PASS"))
    assert noted(env, "a") == ("a", None)
    monkeypatch.setenv("NOTES_WRONG", "gu3ss")
    wrong = "HTTP 401 Unauthorized: .*whether the server takes the token in NOTES_WRONG"
    none = "HTTP 401 Unauthorized: .*whether it needs a token"
    for given, message in (({"token_env": "NOTES_WRONG"}, wrong), ({}, none), ({"state": "none"}, none)):
        with pytest.raises(ValueError, match=f"{re.escape(served.url)}' does not answer: {message}") as caught:
            shared_tools(entry(url=served.url, **given))
        assert "s3cret" not in str(caught.value) and "gu3ss" not in str(caught.value)
    job = RAPOConfig().environment("rapo/word_problems", env_config={"tools": [entry(url=served.url)]})
    with pytest.raises(ValueError, match=none):
        job.training(model={"name_or_path": "smollm2-135m-instruct"}).preflight()


def test_a_path_without_a_server(served: Served) -> None:
    served.start()
    with pytest.raises(ValueError, match=r"/other' does not answer: HTTP 404 Not Found: see whether mcp.url is right"):
        shared_tools(entry(url=served.url.replace("/mcp", "/other")))


def test_a_call_over_http_has_the_time_of_its_limits(served: Served) -> None:
    served.start()
    assert noted(environment(entry(120, url=served.url)), "slow") == ("slow", None)


def test_a_server_over_http_that_hangs_costs_the_call_within_its_deadline(served: Served) -> None:
    served.start()
    env = environment(entry(5, url=served.url))
    assert noted(env, "a") == ("a", None)
    served.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    text, error = noted(env, "b")
    served.process.send_signal(signal.SIGCONT)
    assert error == "server" and "the server has not answered within" in text
    assert time.monotonic() - start < 120


@pytest.mark.parametrize("mcp", [{}, {"state_key": None}], ids=["state key", "session"])
def test_a_server_over_http_that_was_started_again_has_forgotten(served: Served, mcp: dict[str, Any]) -> None:
    """The trajectory does not go on with the empty state of the new server, at this call or a later one; a new one does."""
    served.start()
    env = environment(entry(url=served.url, **mcp))
    call = "<note>{}</note>" if mcp == {} else '<note>{{"who": "me", "text": "{}"}}</note>'
    assert env.step(call.format("a"))[0] == "a" and env.step(call.format("b"))[0] == "a b"
    served.start()
    for text in "cd":
        with pytest.raises(ToolError, match=r"lost, with the state of the trajectory: .*does not know the session any more"):
            env.step(call.format(text))
    reset_when_free(env, ASKED)  # once the lost session has left its place
    assert env.step(call.format("e"))[0] == "e"


def test_without_sessions_nothing_would_tell_that_a_server_was_started_again(served: Served) -> None:
    served.start(NOTES_STATELESS="1")
    with pytest.raises(ValueError, match=r"no session, so a restart without its state would go unnoticed.* mcp\.state: none"):
        shared_tools(entry(url=served.url))
    env = environment(entry(url=served.url, state="none"))
    assert noted(env, "a") == ("a", None) and noted(env, "b") == ("a b", None)
    with pytest.raises(ToolError, match="keeps state, which cannot be copied"):
        copy.deepcopy(env)
    served.start(NOTES_STATELESS="1")
    assert noted(env, "c") == ("c", None), "as the job wants it"

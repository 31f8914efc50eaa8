"""What MCP servers say of their tools, in messages of the ``mcp`` package, and what is refused before anything starts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from places import SUPPORT
from scripted import reset_when_free

pytest.importorskip("mcp")

import mcp

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.protocol.turns import text_argument
from rapo_rllib.settings.knobs import build
from rapo_rllib.tools import shared_tools
from rapo_rllib.tools.base import ToolLimits
from rapo_rllib.tools.mcp import server as server_module
from rapo_rllib.tools.mcp.connection import ServerHungError, ServerLostError
from rapo_rllib.tools.mcp.options import McpOptions
from rapo_rllib.tools.mcp.server import McpServer, McpSession, McpTool, _shown_tools, text_of
from rapo_rllib.tools.schema import check_parameters, problem_of
from rapo_rllib.types import Question

SAY = {"name": "say", "description": "Says it."}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OPTIONS = McpOptions(command="shop-server")


def declared(name: str, description: str | None = "Says a text.", schema: dict[str, Any] = TEXT) -> Any:
    return mcp.Tool(name=name, description=description, input_schema=schema)


def raw(*tools: dict[str, Any]) -> dict[str, Any]:
    """A program that declares these tools."""
    return {"command": sys.executable, "args": [str(SUPPORT / "raw_mcp.py"), json.dumps(tools)]}


def shared_server() -> McpServer:
    """A real one with a session for all."""
    return McpServer(build(McpOptions, {**raw({**SAY, "inputSchema": TEXT}), "state": "none", "sessions": 1}))


class Session:
    """In the place of a connection."""

    lost, hung = "", 0
    begin: Callable[..., Any]

    def __init__(self, options: McpOptions, timeout_s: float) -> None:
        self.tools = [declared(str(options.command))]
        self.begin(options)

    def answers(self) -> bool:
        return True

    def call(self, tool: str, arguments: Any, timeout_s: float) -> Any:
        return SimpleNamespace(content=[], structured_content=None, is_error=False)

    def close(self) -> None:
        pass


def sessions_begin(patch: pytest.MonkeyPatch, begin: Callable[..., Any]) -> None:
    patch.setattr(server_module, "McpConnection", type("Begun", (Session,), {"begin": begin}))


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([declared("say", None)], r"mcp: 'shop-server': tool 'say' has no description to show to the policy"),
        ([declared("say", "  ")], r"tool 'say' has no description"),
        ([], r"'shop-server' has no tools"),
    ],
)
def test_tools_that_cannot_be_shown(tools: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _shown_tools(tools, OPTIONS)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"type": "object", "properties": {"text": {"type": "nothing"}}},
            r"the schema of tool 'say' is none: at \$\.properties\.text\.type: 'nothing' is not valid",
        ),
        (
            {"type": "object", "properties": {"text": {"$ref": "https://example.org/schema.json"}}},
            r"refers to 'https://example.org/schema.json': nothing is fetched",
        ),
        ({"type": "string"}, r"the schema of tool 'say' = .*: must have type: object"),
    ],
)
def test_a_schema_that_is_none(schema: dict[str, Any], message: str) -> None:
    class Server:
        options = OPTIONS

    with pytest.raises(ValueError, match=message):
        McpTool(Server(), declared("say", schema=schema), ToolLimits())  # type: ignore[arg-type]


def test_references_within_a_schema_and_arguments_that_may_be_anything() -> None:
    properties = {"text": {"$ref": "#/$defs/Text"}, "more": True}
    check_parameters({"type": "object", "properties": properties, "$defs": {"Text": {"type": "string"}}}, "say")
    anything = {"type": "object", "properties": {"text": True}}
    schema = {"type": "function", "function": {**SAY, "parameters": anything}}
    check_parameters(anything, "say")
    assert text_argument(schema) is None and problem_of(schema, {"text": [1]}) == ""


@pytest.mark.process
@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (SAY, r"not as the protocol has it: .*inputSchema: Field required"),
        (
            {**SAY, "inputSchema": {"type": "string"}},
            r"tool 'say' = .*: must have type: object|inputSchema",
        ),
    ],
)
def test_a_server_that_says_it_is_refused_before_anything_starts(tool: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        shared_tools({"mcp": raw(tool)})
    assert len(str(caught.value).splitlines()) == 1


def test_a_byte_that_is_no_text_ends_nobodys_session() -> None:
    """It comes as an answer, and in what the server logs, which is read to say why one hangs."""
    server = shared_server()
    one, other = server.session(), server.session()
    long_s = 120.0  # a server that begins on a busy machine may take seconds to its first answer
    said = [text_of(session.call("say", {"text": "x"}, long_s)) for session in (one, other)]
    assert said == ["a\ufffdb"] * 2
    with pytest.raises(TimeoutError, match=r"not answered within 2 s$"):
        one.call("say", {"text": "hang"}, 2)
    with pytest.raises(ServerHungError, match=r"not answered within 2 s \(it wrote: \ufffd\)$"):
        one.call("say", {"text": "stop"}, 2)
    assert text_of(other.call("say", {"text": "x"}, long_s)) == "a\ufffdb"  # in another session: that one was given up
    one.close(), other.close()


def test_a_call_that_waited_for_its_session_to_begin_gives_no_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server that begins slowly would be begun again for every call, and never answer one."""
    server = shared_server()
    (first,), hold = server._open, McpSession._hold
    monkeypatch.setattr(McpSession, "_hold", lambda session, timeout_s: (time.sleep(0.6), hold(session, timeout_s))[1])
    session = server.session()
    with pytest.raises(TimeoutError, match=r"not answered within 0\.1 s"):
        session.call("say", {"text": "hang"}, 0.5)
    assert server._open == [first] and not first.lost and text_of(session.call("say", {"text": "x"}, 120)) == "a\ufffdb"


def test_a_server_has_no_more_sessions_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve trajectories come at once, while sessions take a moment to begin."""
    begun: list[Any] = []
    sessions_begin(monkeypatch, lambda session, _: (begun.append(session), time.sleep(0.05)))
    server = McpServer(McpOptions(command="shop-server", state="none", sessions=2))
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: server.acquire(30), range(12)))
    assert len(begun) == 2 and set(found) == set(begun)
    for one in begun:
        one.lost = "it died"
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: server.acquire(30), range(12)))
    assert len(begun) == 4 and set(found) <= set(begun[2:])


def test_who_waits_for_a_session_that_cannot_begin_tries_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def begin(session: Session, _: McpOptions) -> None:
        tried.append(session)
        if len(tried) > 1:
            time.sleep(0.05)
            raise ServerLostError("no licence")

    sessions_begin(monkeypatch, begin)
    server = McpServer(McpOptions(command="shop-server", state="none", sessions=1))
    server._open[0].lost = "it died"

    def refused(_: int) -> str:
        with pytest.raises(ServerLostError) as caught:
            server.acquire(30)
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(refused, range(3))) == ["no licence"] * 3
    assert len(tried) == 4


@pytest.mark.parametrize("calls", [False, True])
def test_servers_with_different_numbers_of_sessions_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch, calls: bool) -> None:
    """A trajectory has a session of both, or waits and has none; those that it did not use go to others as they are."""
    begun: list[str] = []
    sessions_begin(monkeypatch, lambda _, options: begun.append(options.command))
    servers = [{"mcp": {"command": name, "sessions": most}} for name, most in (("large", 3), ("small", 1))]

    def episode(_: int) -> None:
        env = ToolEnv({"tools": servers})
        reset_when_free(env, Question("q", "Say.", "3"))
        if calls:
            assert env.step("<small>a</small>")[4]["tool_error"] is None
        env.close()

    kept = ToolEnv({"tools": servers})  # the servers live as long as an environment has them
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(episode, range(12)))
    episode(0)
    assert begun.count("large") <= 3 and begun.count("small") <= (14 if calls else 1)
    kept.close()

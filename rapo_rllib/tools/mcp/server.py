"""The MCP server of an entry: its tools, its sessions, and which session each trajectory calls."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import mcp

from rapo_rllib.errors import BusyError, ToolError
from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.tools.mcp.connection import PROBE_S, McpConnection, ServerHungError, ServerLostError, end_all
from rapo_rllib.tools.mcp.options import McpOptions
from rapo_rllib.tools.schema import tool_schema

logger = logging.getLogger(__name__)
MOST_HUNG = 16  # unanswered calls at which a session takes no new users: each may hold a thread of the server


class McpServer:
    """A server with its sessions, at most ``sessions`` at once.

    By default each trajectory has a session of its own. With ``state_key`` a trajectory stays in one session, which other
    trajectories may share. With ``state: none`` alone each call takes the session with the fewest users. A lost session is
    replaced when the next one is wanted.

    Raises:
        ValueError: the server does not answer, has no tools or one without a description, or lacks what the options name.
    """

    def __init__(self, options: McpOptions) -> None:
        self.options = options
        self._changed = threading.Condition()  # held while sessions change; notified when a place or a session may be free
        self._open: list[McpConnection] = []
        self._taken = 1  # places of sessions that begin or end
        self._waiting: list[Future[None]] = []  # for a free session
        try:
            first = self._begin(options.start_timeout_s)
        except ServerLostError as error:
            raise ValueError(f"env_config.tools: mcp: {options.shown!r} does not answer: {error}") from error
        weakref.finalize(self, end_all, self._open)
        self.tools = _shown_tools(first.tools, options)

    def session(self) -> McpSession:
        """Open the server for one trajectory. Raises ``BusyError`` if sessions are not shared and all are taken."""
        return McpSession(self)

    def acquire(self, timeout_s: float) -> McpConnection:
        """Find or begin a session that is alive, and count one more user of it.

        Raises:
            ServerLostError: no session can begin in time.
            BusyError: all sessions are taken, and they are not shared.
        """
        deadline, options = time.monotonic() + timeout_s, self.options
        with self._changed:
            while True:
                found = self._least_used()
                has_room = len(self._open) + self._taken < options.num_sessions
                if found is not None and (not found.users or (options.is_shared and not has_room)):
                    found.users += 1
                    return found
                if has_room:
                    self._taken += 1
                    break
                if not options.is_shared:
                    self._waiting.append(Future())
                    raise BusyError(
                        f"MCP server {options.shown!r}: its sessions are all taken (mcp.sessions)", self._waiting[-1]
                    )
                if not self._changed.wait(deadline - time.monotonic()):
                    raise ServerLostError("no session has begun in time")
        return self._begin(deadline - time.monotonic(), users=1)

    def _begin(self, timeout_s: float, users: int = 0) -> McpConnection:
        """Begin a session in the place that ``_taken`` keeps for it."""
        made = None
        try:
            made = McpConnection(self.options, min(max(timeout_s, 0.1), self.options.start_timeout_s))
            made.users = users
        finally:
            with self._changed:
                self._taken -= 1
                self._open += [] if made is None else [made]
            self._wake()
        return made

    def _wake(self) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for trajectory in waiting:
            trajectory.set_result(None)

    def _least_used(self) -> McpConnection | None:
        """Drop the sessions that take no new users, and return the least used of the others; None: there is none."""
        for gone in [
            one for one in self._open if (one.lost or one.hung >= MOST_HUNG) and (self.options.is_shared or not one.users)
        ]:
            self._open.remove(gone)
            why = "was lost" if gone.lost else "has too many calls without an answer"
            logger.warning("MCP server %r: a session %s, another takes its place", self.options.shown, why)
            if (gone.lost or not gone.users) and self.options.command is None:
                _in_background(gone.close)  # of a server that goes on
            elif gone.lost or not gone.users:
                self._taken += 1  # a program may take its time to end, and its place is free only then
                _in_background(self._end, gone)
        return min(self._open, key=lambda one: one.users, default=None)

    def release(self, connection: McpConnection, key: str, called: bool) -> None:
        """Take a session back: close a trajectory's own, or end the state of its key in a shared one.

        A session that was not ``called``, e.g. since its trajectory had to wait for another server, is as good as new.
        """
        if not self.options.is_shared and (called or connection.lost):
            with self._changed:
                self._open.remove(connection)
                self._taken += 1
            _in_background(self._end, connection)
            return
        with self._changed:
            connection.users -= 1
            if not connection.users and connection not in self._open:
                _in_background(connection.close)
        self._wake()
        if self.options.state_end is not None:
            _in_background(self._forget, connection, key)

    def _end(self, connection: McpConnection) -> None:
        """Close a session, and free its place when it has ended."""
        connection.close()
        with self._changed:
            self._taken -= 1
        self._wake()

    def _forget(self, connection: McpConnection, key: str) -> None:
        options = self.options
        assert options.state_end is not None and options.state_key is not None
        try:
            result = connection.call(options.state_end, {options.state_key: key}, options.start_timeout_s)
            problem = str(result.content) if result.is_error else ""
        except ServerLostError:
            return  # its states are lost with it
        except Exception as error:
            problem = str(error)
        if problem:
            logger.warning("MCP server %r: %s failed: %.200s", options.shown, options.state_end, problem)


class McpSession:
    """The calls of one trajectory, to all tools of a server.

    If a server with state dies or hangs, its state is lost: the trajectory fails, and so do all that share the session. The
    trajectory whose call hung the server goes on, since the call may be at fault; but this call and all its later ones fail.
    With ``state: none`` the next call takes another session.
    """

    def __init__(self, server: McpServer) -> None:
        self._server, self._key = server, uuid.uuid4().hex
        self._connection: McpConnection | None = None
        self.hung = False  # whether a call of this trajectory hung the server
        self._called = False
        timeout_s = server.options.start_timeout_s
        if not (server.options.is_shared or self._hold(timeout_s).answers()):
            self._called = True  # it died before it was used, so no other trajectory may have it
            self.close()
            self._called = False
            self._hold(timeout_s)

    def _hold(self, timeout_s: float) -> McpConnection:
        """Return the trajectory's session, acquired if there is none; a lost session that kept no state is replaced."""
        options = self._server.options
        if self._connection is not None and self._connection.lost and not options.ends_with_session:
            self.close()
        try:
            self._connection = self._connection or self._server.acquire(timeout_s)
        except ServerLostError as error:
            raise ToolError(
                f"MCP server {options.shown!r} does not begin a session: {error}; if it can run only once, set mcp.sessions: 1"
            ) from error
        return self._connection

    def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """Call a tool.

        If a session has to begin for the call, that takes from ``timeout_s``.

        Raises what ``McpConnection.call`` raises, and ``ToolError`` if the trajectory cannot go on: no session can be begun, or
        the server was lost with its state.
        """
        options, deadline = self._server.options, time.monotonic() + timeout_s
        connection = self._hold(timeout_s)
        if options.state_key is not None:
            arguments = {**arguments, options.state_key: self._key}
        self._called = True
        try:
            return connection.call(tool, arguments, max(deadline - time.monotonic(), 0.1))
        except ServerLostError as error:
            self.hung = self.hung or isinstance(error, ServerHungError)
            if options.ends_with_session and not self.hung:
                raise ToolError(f"MCP server {options.shown!r} was lost, with the state of the trajectory: {error}") from error
            raise
        finally:
            if not options.keeps_state:
                self.close()

    def fork(self) -> McpSession:
        """Open the server for a branch of the trajectory. Raises ``ToolError`` if state would have to be copied."""
        if not self._server.options.keeps_state or self._connection is None:
            return McpSession(self._server)
        raise ToolError(f"MCP server {self._server.options.shown!r} keeps state, which cannot be copied")

    def __deepcopy__(self, memo: dict[int, Any]) -> McpSession:
        return self.fork()

    def close(self) -> None:
        """Give the session back, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._server.release(connection, self._key, self._called)


def _shown_tools(found: list[Any], options: McpOptions) -> list[Any]:
    """Choose the tools that the policy sees, and refuse options that do not fit the server's tools."""
    where, names = f"env_config.tools: mcp: {options.shown!r}", [tool.name for tool in found]
    for name in options.only:
        if name not in names:
            raise ValueError(f"{where} has no tool {name!r} (mcp.only): it has {', '.join(names) or 'none'}")
    if options.state_end is not None and options.state_end not in names:
        raise ValueError(f"{where} has no tool {options.state_end!r} (mcp.state_end): it has {', '.join(names) or 'none'}")
    shown = [tool for tool in found if tool.name in (options.only or names) and tool.name != options.state_end]
    if not shown:
        raise ValueError(f"{where} has no tools")
    for tool in shown:
        if not (tool.description or "").strip():
            raise ValueError(f"{where}: tool {tool.name!r} has no description to show to the policy: name others in mcp.only")
    key = options.state_key
    if key is not None and not any(key in tool.input_schema.get("properties", {}) for tool in shown):
        raise ValueError(f"{where}: no tool has an argument {key!r} (mcp.state_key): leave it out")
    return shown


def _in_background(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True, name="rapo-mcp-close").start()


class McpTool:
    """One tool of a server; name, description and schema are the server's, less the argument that keeps trajectories apart.

    Args:
        server: the tool's server.
        declared: the server's description of the tool.
        limits: of one call.
    """

    keeps_time = True

    def __init__(self, server: McpServer, declared: mcp.Tool, limits: ToolLimits) -> None:
        self.server, self.limits = server, limits
        self.name = self.tag = declared.name
        self.begins = not server.options.is_shared
        self.description = (declared.description or "").strip()
        self.parameters = _without(declared.input_schema, server.options.state_key)
        tool_schema(self)  # one that cannot be shown is refused at once

    def run(self, input: str) -> ToolResult:
        """Run one call in a session of its own."""
        session = self.server.session()
        try:
            return self.run_in(session, input)
        finally:
            session.close()

    def session_in(self, shared: dict[Any, Any]) -> McpToolSession:
        """Open this tool in a trajectory; all tools of the server share one session there, kept in ``shared``."""
        if id(self.server) not in shared:
            shared[id(self.server)] = self.server.session()
        return McpToolSession(self, shared[id(self.server)])

    def run_in(self, session: McpSession, input: str) -> ToolResult:
        """Make one call; its errors are observations. Raises ``ToolError`` if the trajectory cannot go on."""
        try:
            result = session.call(self.name, json.loads(input), self.limits.timeout_s)
        except mcp.MCPError as error:
            return ToolResult(f"Error: {error}", "refused")
        except TimeoutError as error:
            return ToolResult(f"TimeoutError: {self.name}: {error}", "timeout")
        except ServerLostError as error:
            return ToolResult(f"Error: {self.name} is not available: {error}", "server")
        return ToolResult(text_of(result), "exception" if result.is_error else None)


class McpToolSession:
    """A tool in one trajectory."""

    extra_s = 2 * PROBE_S  # to find out whether the call alone hangs, or the server

    def __init__(self, tool: McpTool, session: McpSession) -> None:
        self._tool, self._session = tool, session

    def run(self, input: str) -> ToolResult:
        """Run one call after the trajectory's earlier calls."""
        return self._tool.run_in(self._session, input)

    def fork(self) -> McpToolSession:
        """Open this tool in a branch of the trajectory. Raises ``ToolError`` if state would have to be copied."""
        return McpToolSession(self._tool, self._session.fork())

    def close(self) -> None:
        """Close the session when the trajectory ends."""
        self._session.close()


def text_of(result: Any) -> str:
    """Render an answer as the policy reads it: texts, and the kind of other parts; without parts, the structured content."""
    pieces = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not pieces and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(pieces)


def _without(schema: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Return the schema without the argument ``key``, which the policy does not give."""
    shown = {"properties": {}, **schema}
    if key is not None:
        shown["properties"] = {name: value for name, value in shown["properties"].items() if name != key}
        shown["required"] = [name for name in shown.get("required", ()) if name != key]
    return shown

"""A server of an entry: its tools, its sessions, and which trajectory calls in which of them."""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from typing import Any

from rapo_rllib.errors import ToolError
from rapo_rllib.tools.mcp.connection import McpConnection, ServerHungError, ServerLostError
from rapo_rllib.tools.mcp.options import McpOptions

logger = logging.getLogger(__name__)
_WHOLE = 0.8  # of a call's time: where a session's beginning left less, a missing answer does not mean that the server hangs


class McpServer:
    """The session that several trajectories call.

    Without ``state`` (or with a ``state_key``) they share up to ``sessions`` sessions, else each has one of its own. A session
    that was lost is replaced at the next call that may have another.

    Raises:
        ValueError: the server does not answer, or its tools cannot be shown: two of a name, none, one without a description.
    """

    def __init__(self, options: McpOptions) -> None:
        self.options = options
        self._changed = threading.Condition()  # held while sessions change; notified when one has begun, or could not
        self._next, self._beginning = 0, 0
        try:
            first = McpConnection(options, options.start_timeout_s)
        except ServerLostError as error:
            raise ValueError(f"env_config.tools: mcp: {options.shown!r} does not answer: {error}") from error
        self._open: list[McpConnection] = [first]  # shared ones; else those that wait for a trajectory
        weakref.finalize(self, _close_all, self._open)
        self.tools = _shown_tools(first.tools, options)

    def session(self) -> McpSession:
        """For one trajectory."""
        return McpSession(self)

    def acquire(self, timeout_s: float) -> McpConnection:
        """A session that is alive. Raises ``ServerLostError`` if none can be begun in time."""
        if self.options.is_shared:
            return self._shared(time.monotonic() + timeout_s)
        with self._changed:
            self._drop_lost()
            if self._open:
                return self._open.pop()
        return McpConnection(self.options, min(timeout_s, self.options.start_timeout_s))

    def _shared(self, deadline: float) -> McpConnection:
        """One of up to ``sessions``: who comes while the last of them begin waits for one."""
        with self._changed:
            self._drop_lost()
            while len(self._open) + self._beginning >= self.options.sessions:
                if self._open:
                    self._next += 1
                    return self._open[self._next % len(self._open)]
                if not self._changed.wait(deadline - time.monotonic()):
                    raise ServerLostError("no session has begun in time")
            self._beginning += 1
        made = None
        try:
            made = McpConnection(self.options, min(max(deadline - time.monotonic(), 0.1), self.options.start_timeout_s))
        finally:
            with self._changed:
                self._beginning -= 1
                self._open += [] if made is None else [made]
                self._changed.notify_all()
        return made

    def _drop_lost(self) -> None:
        for lost in [one for one in self._open if one.lost]:
            self._open.remove(lost)
            _close_soon(lost)
            logger.warning("MCP server %r: a session was lost, another takes its place", self.options.shown)

    def release(self, connection: McpConnection, key: str) -> None:
        """A trajectory ended: its own session ends with it, for nobody may see what it left there; or its state of that key."""
        if not self.options.is_shared:
            _close_soon(connection)
        elif self.options.state_end is not None:
            threading.Thread(target=self._forget, args=(connection, key), daemon=True, name="rapo-mcp-close").start()

    def _forget(self, connection: McpConnection, key: str) -> None:
        options = self.options
        assert options.state_end is not None and options.state_key is not None
        try:
            result = connection.call(options.state_end, {options.state_key: key}, options.start_timeout_s)
            problem = str(result.content) if result.is_error else ""
        except ServerLostError:
            return  # and its states with it
        except Exception as error:
            problem = str(error)
        if problem:
            logger.warning("MCP server %r: %s failed: %.200s", options.shown, options.state_end, problem)


class McpSession:
    """The calls of one trajectory, to all tools of a server.

    A server that keeps state and dies has forgotten what the trajectory did, which costs the trajectory, and those that share
    a session with a call at which the server hangs. It may hang because of the call: that trajectory goes on, and this call of
    it and all later ones fail. Without state another session is called.
    """

    def __init__(self, server: McpServer) -> None:
        self._server, self._key = server, uuid.uuid4().hex
        self._connection: McpConnection | None = None
        self.hung = False  # the server did not answer a call of this trajectory

    def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """Call a tool.

        A session that begins for a call takes of its time.

        Raises what ``McpConnection.call`` raises, and ``ToolError`` where the trajectory cannot go on: no session can be begun,
        or the server died with its state.
        """
        options, deadline = self._server.options, time.monotonic() + timeout_s
        try:
            if self._connection is None or (self._connection.lost and not options.ends_with_session):
                self._connection = self._server.acquire(timeout_s)
        except ServerLostError as error:
            raise ToolError(f"MCP server {options.shown!r} does not begin a session: {error}") from error
        if options.state_key is not None:
            arguments = {**arguments, options.state_key: self._key}
        left = max(deadline - time.monotonic(), 0.1)
        is_whole = options.keeps_state or left > _WHOLE * timeout_s
        try:
            return self._connection.call(tool, arguments, left, is_whole)
        except ServerLostError as error:
            self.hung = self.hung or isinstance(error, ServerHungError)
            if options.ends_with_session and not self.hung:
                raise ToolError(f"MCP server {options.shown!r} was lost, with the state of the trajectory: {error}") from error
            raise

    def fork(self) -> McpSession:
        """Another for a trajectory that branches. Raises ``ToolError`` where a server would have to copy its state."""
        if not self._server.options.keeps_state or self._connection is None:
            return McpSession(self._server)
        raise ToolError(f"MCP server {self._server.options.shown!r} keeps state, which cannot be copied")

    def __deepcopy__(self, memo: dict[int, Any]) -> McpSession:
        return self.fork()

    def close(self) -> None:
        """The trajectory ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._server.release(connection, self._key)


def _shown_tools(found: list[Any], options: McpOptions) -> list[Any]:
    """Those that the policy sees."""
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
        if names.count(tool.name) > 1:
            raise ValueError(f"{where} has two tools called {tool.name!r}: name others in mcp.only")
        if not (tool.description or "").strip():
            raise ValueError(f"{where}: tool {tool.name!r} has no description to show to the policy: name others in mcp.only")
    key = options.state_key
    if key is not None and not any(key in tool.input_schema.get("properties", {}) for tool in shown):
        raise ValueError(f"{where}: no tool has an argument {key!r} (mcp.state_key): leave it out")
    return shown


def _close_soon(connection: McpConnection) -> None:
    """On a thread of its own: a server may take its time to end."""
    threading.Thread(target=connection.close, daemon=True, name="rapo-mcp-close").start()


def _close_all(connections: list[McpConnection]) -> None:
    for connection in connections:
        connection.close()

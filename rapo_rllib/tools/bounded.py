"""Tools whose limits are enforced, shared by all environments of a process.

``env_config.tools`` entry -> ``shared_tools`` -> BoundedTool (shared by a process) -> session (one per trajectory)
"""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from rapo_rllib.errors import ToolError
from rapo_rllib.protocol.calls import read_object
from rapo_rllib.protocol.turns import Schema
from rapo_rllib.settings.knobs import build
from rapo_rllib.tools.base import KeepsState, SharesState, Tool, ToolLimits, ToolResult, ToolSession
from rapo_rllib.tools.make import make_tool
from rapo_rllib.tools.schema import arguments_of, tool_schema
from rapo_rllib.validation import refuse_unknown_keys

logger = logging.getLogger(__name__)

_KINDS = {
    "name": ("name", "options", "limits"),
    "mcp": ("mcp", "limits"),
}  # kinds of entries, and the keys of each
MAX_HUNG_CALLS = 64  # each holds a thread; with so many of them the tool counts as broken


class BoundedTool:
    """A tool and its limits: a call is given up when its time is over, and a long output is cut.

    A given-up call runs on in a thread, which cannot be killed. With ``MAX_HUNG_CALLS`` of them, calls raise ``ToolError``.
    """

    def __init__(self, tool: Tool, limits: ToolLimits | None = None) -> None:
        self.tool, self.name, self.tag = tool, tool.name, tool.tag
        self.limits = limits or tool.limits
        self._lock = threading.Lock()
        self._hung = 0
        close = getattr(tool, "close", None)
        if close is not None:
            weakref.finalize(self, close)

    @cached_property
    def schema(self) -> Schema:
        """The tool's description in a prompt. Raises ``ValueError`` without a description or a proper schema."""
        return tool_schema(self.tool)

    @property
    def takes_json(self) -> bool:
        """Whether ``run`` takes the arguments as JSON; if not, it takes one text."""
        return hasattr(self.tool, "parameters")

    @property
    def begins(self) -> bool:
        """Whether the tool's session begins with the trajectory."""
        return isinstance(self.tool, SharesState) and self.tool.begins

    def read(self, said: str) -> tuple[str, str]:
        """Convert the policy's text between tags to the input of ``run``, and say what is wrong with it; empty: nothing.

        A tool of one text, e.g. code, gets the whole text; from a JSON object of this one argument it gets the argument.
        """
        if self.takes_json:
            arguments, problem = arguments_of(self.schema, said)
            return json.dumps(arguments, ensure_ascii=False), problem
        (name, value), *others = [*(read_object(said)[0] or {"": None}).items()]
        named = name == getattr(self.tool, "argument", "input") and isinstance(value, str) and not others
        return value if named else said, ""

    def run(self, input: str) -> ToolResult:
        """Run one call outside of any session."""
        return self.call(self.tool.run, input)

    def session(self, shared: dict[Any, Any] | None = None) -> BoundedSession:
        """Open the tool in one trajectory; tools that share a session with others keep it in ``shared``."""
        if isinstance(self.tool, SharesState):
            return BoundedSession(self, self.tool.session_in({} if shared is None else shared))
        return BoundedSession(self, self.tool.session() if isinstance(self.tool, KeepsState) else None)

    def call(
        self, run: Callable[[str], ToolResult], input: str, turn: threading.BoundedSemaphore | None = None, extra_s: float = 0.0
    ) -> ToolResult:
        """Call ``run`` within the limits, in a thread of its own unless the tool keeps its time by itself.

        Args:
            run: makes the call; its exceptions are raised here.
            input: argument of ``run``.
            turn: held until the call has ended, even if it is given up before; None: the call needs no turn.
            extra_s: seconds that the call may take beyond the tool's limit.
        """
        started, limit = time.monotonic(), self.limits.timeout_s + extra_s
        if self._hung >= MAX_HUNG_CALLS:
            raise ToolError(f"tool {self.name}: {self._hung} calls hang; none of them ended within {self.limits.timeout_s:g} s")
        if turn is not None and not turn.acquire(timeout=limit):
            return self._timed_out(started, "waited for its turn", limit)
        if getattr(self.tool, "keeps_time", False):
            return self._bounded(_held(turn, run, input), time.monotonic() - started)
        call = _in_thread(turn, run, input)
        if not wait([call], limit).done:
            self._count_hung(1)
            call.add_done_callback(lambda _: self._count_hung(-1))
            logger.warning("tool %s: no result within %g s on %.80r", self.name, limit, input)
            return self._timed_out(started, "ran", limit)
        return self._bounded(call.result(), time.monotonic() - started)

    def _count_hung(self, change: int) -> None:
        with self._lock:
            self._hung += change

    def _timed_out(self, started: float, what: str, limit: float) -> ToolResult:
        text = f"TimeoutError: {self.name} {what} longer than {limit:g} s"
        return ToolResult(text, "timeout", time.monotonic() - started)

    def _bounded(self, result: ToolResult, seconds: float) -> ToolResult:
        text, most = result.text, self.limits.max_output_chars
        if len(text) > most:
            text = f"{text[:most]}\n... (output cut after {most} characters)"
        return replace(result, text=text, seconds=result.seconds or seconds)

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedTool:
        return self  # a trajectory that branches copies its environment; tools are shared


def _held(turn: threading.BoundedSemaphore | None, run: Callable[[str], ToolResult], input: str) -> ToolResult:
    """Make a call, and release its turn when it has ended."""
    try:
        return run(input)
    finally:
        if turn is not None:
            turn.release()


def _in_thread(turn: threading.BoundedSemaphore | None, run: Callable[[str], ToolResult], input: str) -> Future[ToolResult]:
    """Make a call in a daemon thread, so that a hung one does not keep the process from ending."""
    call: Future[ToolResult] = Future()

    def make() -> None:
        try:
            result = _held(turn, run, input)
        except BaseException as error:
            call.set_exception(error)  # raised again where the call was made
        else:
            call.set_result(result)

    threading.Thread(target=make, daemon=True, name="tool-call").start()
    return call


class BoundedSession:
    """A tool in one trajectory: the tool's session, which runs one call at a time, or the shared tool if it has no session."""

    def __init__(self, tool: BoundedTool, session: ToolSession | None) -> None:
        self._tool, self._session, self._turn = tool, session, threading.BoundedSemaphore()
        self._closer = weakref.finalize(self, session.close) if session is not None else None

    def run(self, input: str) -> ToolResult:
        """Run one call after the trajectory's earlier calls."""
        if self._session is None:
            return self._tool.run(input)
        return self._tool.call(self._session.run, input, self._turn, self.extra_s)

    @property
    def extra_s(self) -> float:
        """Seconds that the next call may take beyond the tool's limit."""
        return float(getattr(self._session, "extra_s", 0.0))

    def close(self) -> None:
        """Close the session when the trajectory ends."""
        if self._closer is not None:
            self._closer()

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedSession:
        return BoundedSession(self._tool, None if self._session is None else self._session.fork())


_shared: weakref.WeakValueDictionary[str, BoundedTool] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_tools(entry: Any) -> list[BoundedTool]:
    """Find or make the tools that an entry of ``env_config.tools`` describes.

    It is a name, ``{name: ..., options: {...}, limits: {...}}``, ``{mcp: {...}, limits: {...}}``, or in Python a function.
    Equal entries give the same tool, or tools of the same server, as long as it is in use; afterwards it is closed.

    Raises:
        ValueError: the entry is wrong; the message says what is wrong with it.
    """
    if isinstance(entry, str) or callable(entry):
        entry = {"name": entry}
    kind = next((kind for kind in _KINDS if isinstance(entry, Mapping) and kind in entry), None)
    if kind is None or not (isinstance(entry[kind], str) or callable(entry[kind]) or kind == "mcp"):
        raise ValueError(
            f"env_config.tools: {entry!r}: each entry is a name or {{name: python, options: {{timeout_s: 5}}}}, or "
            "{mcp: {command: program}}"
        )
    refuse_unknown_keys(entry, _KINDS[kind], "env_config.tools: ")
    named, options, limits = entry[kind], entry.get("options") or {}, entry.get("limits") or {}
    for key, value in (("options", options), ("limits", limits)):
        if not isinstance(value, Mapping):
            raise ValueError(f"env_config.tools: {key} of {named!r} = {value!r}: must be a mapping")
    refuse_unknown_keys(limits, [f.name for f in fields(ToolLimits)], "env_config.tools: limits.")
    # with ids, since two objects may have the same repr
    key = json.dumps([kind, named, options, limits], sort_keys=True, default=lambda value: f"{value!r} at {id(value)}")
    with _shared_lock:
        if kind == "mcp":
            return _tools_of_server(key, named, limits)
        found = _shared.get(key)
        if found is None:
            tool = make_tool(named, **options)
            found = _shared[key] = BoundedTool(tool, replace(tool.limits, **limits))
        return [found]


_servers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def _tools_of_server(key: str, named: Any, limits: Mapping[str, Any]) -> list[BoundedTool]:
    """Return all tools that an MCP server offers; the server runs as long as one of them is in use."""
    from rapo_rllib.tools.mcp.options import McpOptions

    options, given = build(McpOptions, named), ToolLimits(**limits)
    try:
        from rapo_rllib.tools.mcp.server import McpServer, McpTool
    except ImportError as error:
        raise ValueError(f"env_config.tools: mcp: {error}: run `pip install 'rapo_rllib[mcp]'`") from error
    server = _servers.get(key)
    if server is None:
        server = _servers[key] = McpServer(options)
    return [BoundedTool(McpTool(server, declared, given)) for declared in server.tools]

"""A tool of an MCP server, as ``env_config.tools`` has tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import mcp

from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.tools.mcp.connection import PROBE_S, ServerLostError
from rapo_rllib.tools.mcp.server import McpServer, McpSession
from rapo_rllib.tools.schema import tool_schema


class McpTool:
    """One tool; its name, description and schema are the server's, without the argument that keeps trajectories apart.

    Args:
        server: that has it.
        declared: what the server says of it.
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
        """One call in a session of its own."""
        session = self.server.session()
        try:
            return self.run_in(session, input)
        finally:
            session.close()

    def session_in(self, shared: dict[Any, Any]) -> McpToolSession:
        """This tool in a trajectory, whose calls to all tools of the server are one session of it."""
        if id(self.server) not in shared:
            shared[id(self.server)] = self.server.session()
        return McpToolSession(self, shared[id(self.server)])

    def run_in(self, session: McpSession, input: str) -> ToolResult:
        """Make one call; its faults are observations. Raises ``ToolError`` if the server and its state are lost."""
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

    extra_s = 2 * PROBE_S  # to find out whether only the call hangs, or the server

    def __init__(self, tool: McpTool, session: McpSession) -> None:
        self._tool, self._session = tool, session

    def run(self, input: str) -> ToolResult:
        """One call, after the earlier ones of this trajectory."""
        return self._tool.run_in(self._session, input)

    def fork(self) -> McpToolSession:
        """Raises ``ToolError`` where the server keeps state."""
        return McpToolSession(self._tool, self._session.fork())

    def close(self) -> None:
        """The trajectory ended."""
        self._session.close()


def text_of(result: Any) -> str:
    """Return an answer as the policy reads it: texts, the kind of everything else, else structured content."""
    pieces = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not pieces and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(pieces)


def _without(schema: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """The schema of the arguments that the policy gives."""
    shown = {"properties": {}, **schema}
    if key is not None:
        shown["properties"] = {name: value for name, value in shown["properties"].items() if name != key}
        shown["required"] = [name for name in shown.get("required", ()) if name != key]
    return shown

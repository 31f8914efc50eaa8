"""What the tests of MCP servers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


@pytest.fixture
def hang_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that will hang has 3 s; all others keep the time of their limits, since a busy machine answers slowly."""
    from rapo_rllib.tools.mcp.server import McpSession

    call = McpSession.call

    def shorter(session: McpSession, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        return call(session, tool, arguments, 3.0 if {"hang", "stop"} & {*arguments.values()} else timeout_s)

    monkeypatch.setattr(McpSession, "call", shorter)

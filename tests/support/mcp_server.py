"""An MCP server for tests: counts, dies, hangs, fails. Over stdio; with a port over HTTP."""

from __future__ import annotations

import os
import signal
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("test")
total = 0


@server.tool()
def add(amount: int) -> str:
    """Adds to the total of this session."""
    global total
    total += amount
    return f"{total} {os.getpid()}"


@server.tool()
def fail(how: str) -> str:
    """Fails: die, hang (the call), stop (the server), raise or shout; or tells a secret."""
    if how == "die":
        os._exit(3)
    if how == "hang":
        time.sleep(3600)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "shout":
        return "!" * 10_000
    if how == "tell":
        return os.environ.get("MCP_TEST_TOKEN", "nothing")
    raise RuntimeError(how)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")

"""An MCP server for tests that keeps callers apart by a key, over stdio, or over HTTP on a port, for those with NOTES_TOKEN.

With NOTES_STATELESS it gives no sessions over HTTP.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict

import uvicorn
from mcp.server.mcpserver import MCPServer
from servers import guarded

server = MCPServer("notes")
notes: dict[str, list[str]] = defaultdict(list)


@server.tool()
def note(who: str, text: str) -> str:
    """Keeps a text and tells all texts of this caller; the text `hang` hangs, `stop` stops the server, `slow` takes a while."""
    if text == "hang":
        time.sleep(3600)
    if text == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if text == "slow":
        time.sleep(7)
    notes[who].append(text)
    return " ".join(notes[who])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app = server.streamable_http_app(stateless_http="NOTES_STATELESS" in os.environ)
        app = guarded(app, os.environ.get("NOTES_TOKEN"))
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
    else:
        server.run("stdio")

"""An MCP server over stdio that says of its tools what it is told to, right or wrong: a JSON list in its first argument.

A call is answered with, and logs, a byte that is no UTF-8; the text "hang" is not answered, and after "stop" nothing is.
"""

import json
import os
import signal
import sys

TOOLS = json.loads(sys.argv[1])

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "no such method"}}
    if asked["method"] == "initialize":
        version = asked["params"].get("protocolVersion", "2025-03-26")
        answer = {
            "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
        }
    elif asked["method"] == "tools/list":
        answer = {"result": {"tools": TOOLS}}
    elif asked["method"] == "tools/call":
        sys.stderr.buffer.write(b"\xff\n")
        sys.stderr.flush()
        if asked["params"]["arguments"]["text"] == "hang":
            continue
        if asked["params"]["arguments"]["text"] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = {"result": {"content": [{"type": "text", "text": "a\0b"}]}}
    written = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}) + "\n"
    sys.stdout.buffer.write(written.encode().replace(b"\\u0000", b"\xff"))
    sys.stdout.flush()

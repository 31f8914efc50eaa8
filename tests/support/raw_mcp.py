"""An MCP server over stdio that says of its tools what it is told to, right or wrong: a JSON list in its first argument."""

import json
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
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}) + "\n")
    sys.stdout.flush()

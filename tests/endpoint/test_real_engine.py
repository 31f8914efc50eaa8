"""An agent against vLLM and its tool parser, wired as an env runner does it, beside the same policy in `rapo/questions`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_model import save_calling_model

from rapo_rllib import RAPOConfig
from rapo_rllib.env_runner.parts import make_engine, make_loop
from rapo_rllib.types import TokenKind


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("agent")
    save_calling_model(folder / "model", smollm2, ("calcul", "ator"), "expression")
    rows = [{"question": f"What is {n} + 5?", "answer": "8"} for n in range(3, 7)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model": {"name_or_path": str(folder / "model")},
        "engine": {"dtype": "float32", "max_num_seqs": 16, "enforce_eager": True, "kv_cache_gib": 0.2},
        "protocol": {"format": "native"},
        "env_config": {"dataset": str(folder / "rows.jsonl"), "scorer": "math"},
        "group_size": 4,
        "num_hybrid": 0,
        "max_prompt_tokens": 512,
        "max_response_tokens": 1500,
        "seed": 0,
    }


def job(keys: dict[str, Any], env: str, **env_config: Any) -> RAPOConfig:
    calls = {"max_tool_calls": 40} if env == "rapo/questions" else {}  # an agent counts its own
    return RAPOConfig().update_from_dict({**keys, **calls, "env": env, "env_config": {**keys["env_config"], **env_config}})


@pytest.fixture(scope="module")
def engine(keys: dict[str, Any]) -> Iterator[Any]:
    made = make_engine(job(keys, "rapo/questions", tools=["calculator"]).settings, seed=0)
    yield made
    made.close()


def test_tokens_and_masks_are_those_of_questions(keys: dict[str, Any], engine: Any) -> None:
    tools = ["calculator_function:calculator"]
    questions = job(keys, "rapo/questions", tools=tools)
    asked = questions.question_source.questions("train")
    reference = make_loop(questions.settings, questions.question_source, engine, None)
    agent = job(
        keys,
        "rapo/agent",
        agent="own_agents:loop",
        agent_options={"turns": 40, "tools": reference.envs._make_env().unwrapped.tool_schemas},
    )
    expected = reference.run(asked)
    reference.close()
    loop = make_loop(agent.settings, agent.question_source, engine, None)
    found = loop.run(agent.question_source.questions("train"))
    loop.close()
    calls = 0
    for group, other in zip(found, expected, strict=True):
        for one, same in zip(group.trajectories, other.trajectories, strict=True):
            assert one.end == same.end == "answer" and not one.others
            for name in ("prompt_ids", "token_ids", "kinds", "reward", "correct", "policy_version"):
                assert getattr(one, name) == getattr(same, name), name
            assert one.logprobs == pytest.approx(same.logprobs, abs=1e-3)
            assert one.entropies == pytest.approx(same.entropies, abs=1e-3)
            calls += sum(step.tool == "calculator" for step in one.steps)
            (scores,) = engine.score([[*one.prompt_ids, *one.token_ids]])
            trained = [i for i, kind in enumerate(one.kinds) if kind == TokenKind.POLICY]
            start = len(one.prompt_ids) - 1
            assert [one.logprobs[i] for i in trained] == pytest.approx([scores[start + i] for i in trained], abs=2e-3)
    assert calls > 4

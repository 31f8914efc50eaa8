"""Rollouts in the models' own form of tool calls: a scripted engine, real templates, real environments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calculator_turns import call, solve
from chat_templates import FAMILIES, ScriptedTurns, tokenizer_of
from scripted import OneTrace

from rapo_rllib.buffer.growth import grown_candidates
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.protocol.make import RolloutProtocol, make_protocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import BranchingSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, TokenKind, Trajectory

QUESTION = Question("q", "What is 3 + 5 + 1?", "9")


class Made:
    """A loop over one tokenizer, and what it asked the buffer."""

    def __init__(
        self, tokenizer: Any, script: Callable[[str], str], env_config: dict[str, Any], protocol: dict[str, Any], **rollout: Any
    ):
        settings = ProtocolSettings(format="native", **protocol)
        defaults = {"max_tool_calls": 5, "scorer": "math", "tools": ["calculator"], "protocol": settings}
        self.env_config = {**defaults, **env_config}
        probe = ToolEnv(self.env_config)
        self.chat: RolloutProtocol = make_protocol(tokenizer, settings, probe)
        self.source, self.tokenizer = OneTrace(), tokenizer
        self.loop = RolloutLoop(
            ScriptedTurns(tokenizer, script),
            self.chat,
            EnvPool(lambda: ToolEnv(self.env_config), "answer"),
            RolloutSettings(**{"group_size": 2, "num_hybrid": 1, "max_response_tokens": 900, **rollout}),
            Retriever(self.source, selection="nearest", top_k=1),
        )

    def run(self, question: Question = QUESTION, chance: float = 0.0) -> list[Trajectory]:
        (group,) = self.loop.run([question], retrieval_prob=chance)
        for trajectory in group.trajectories:
            self.check(trajectory)
        return group.trajectories

    def check(self, trajectory: Trajectory) -> None:
        """Every token says who wrote it, and the text is that of the tokens."""
        assert len(trajectory.kinds) == len(trajectory.token_ids) == len(trajectory.logprobs)
        assert self.tokenizer.decode(trajectory.token_ids) == trajectory.text
        policy = [i for i, kind in enumerate(trajectory.kinds) if kind == TokenKind.POLICY]
        assert policy == [i for step in trajectory.steps for i in range(step.start, step.stop)]
        for step in trajectory.steps:
            ids = trajectory.token_ids[step.start : step.stop]
            assert self.tokenizer.decode([i for i in ids if i not in self.chat.end_ids]) == step.text
            assert trajectory.text[step.text_start :].startswith(step.text)
        assert all(logprob == 0 for logprob, kind in zip(trajectory.logprobs, trajectory.kinds, strict=True) if kind)


@pytest.fixture
def make(smollm2: Path) -> Callable[..., Made]:
    def made(
        script: Callable[[str], str] = solve, family: str = "qwen25", env: Any = (), protocol: Any = (), **rollout: Any
    ) -> Made:
        return Made(tokenizer_of(family, smollm2), script, dict(env), dict(protocol), **rollout)

    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_run_and_the_last_turn_is_scored(make: Callable[..., Made], family: str) -> None:
    made = make(family=family)
    opening = list(made.chat.opening.token_ids)
    for trajectory in made.run():
        before = [trajectory.token_ids[: step.start] for step in trajectory.steps[1:]]
        assert all(ids[len(ids) - len(opening) :] == opening for ids in before)
        assert [(step.tool, step.tool_error, step.observation) for step in trajectory.steps] == [
            ("calculator", None, "8"),
            ("calculator", None, "9"),
            (None, None, ""),
        ]
        assert (trajectory.end, trajectory.reward, trajectory.predicted) == ("answer", 1.0, "9")
        assert trajectory.turn_ended and trajectory.format_ok


def test_histories_and_grown_traces_are_in_the_text_protocol(make: Callable[..., Made]) -> None:
    made = make(num_hybrid=2)
    made.run(chance=1.0)
    steps = ["<calculator>3 + 5</calculator>\n<result>\n8\n</result>", "<calculator>8 + 1</calculator>\n<result>\n9\n</result>"]
    histories = {query.history for batch in made.source.batches for query in batch}
    assert histories == {steps[0], f"{steps[0]}\n<python>9</python>\n{steps[1]}"}
    (group,) = made.loop.run([QUESTION])
    texts = [trace.text.strip() for trace in grown_candidates([group], "successful", made.chat.settings)][:3]
    assert texts == [*steps, "<answer>So it is \\boxed{9}.</answer>"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_retrieved_step_between_two_turns(make: Callable[..., Made], family: str) -> None:
    made = make(family=family, num_hybrid=2)
    for trajectory in made.run(chance=1.0):
        (first, *_), opening = trajectory.retrievals, made.chat.opening.token_ids
        assert set(trajectory.kinds[first.start : first.stop]) == {TokenKind.RETRIEVED}
        before, behind = trajectory.token_ids[: first.start], trajectory.token_ids[first.stop : trajectory.steps[1].start]
        if opening:
            assert before[-len(opening) :] != list(opening)
        assert behind == list(opening)
        assert trajectory.end == "answer" and len(trajectory.retrievals) == 2


@pytest.mark.parametrize(
    ("turn", "error", "said"),
    [
        (call("3 + 5", "calc"), "unknown", "there is no tool 'calc'; the tools are: calculator"),
        (call(8), "arguments", "wrong arguments of calculator: expression: 8 is not of type 'string'"),
        ('{"name": "calculator", "arguments": {}}', "arguments", "'expression' is a required property"),
        ('{"name": "calculator", "arguments": {"expression": "1 + 1", "unit": "C"}}', "arguments", "('unit' was unexpected)"),
        ('{"name": "calculator", "arguments": "3 + 5"}', "malformed", "must be a JSON object"),
        ('{"name": "calculator"', "malformed", "the tool call could not be read: a call is JSON with"),
        (call("3 + + 5"), "form", "one operation on two numbers a call"),
    ],
)
def test_a_bad_call_is_told(make: Callable[..., Made], turn: str, error: str, said: str) -> None:
    made = make(lambda so_far: "\\boxed{9}" if "tool_response" in so_far else turn, env={"reward": {"tool_error": -0.5}})
    for trajectory in made.run():
        step = trajectory.steps[0]
        assert step.tool_error == error and said in step.observation and said in trajectory.text
        assert trajectory.reward == 0.5
    known = error in ("arguments", "form") or '"calculator", ' in turn
    assert made.loop.stats.tool_failures == {f"{'calculator' if known else 'unknown'}/{error}": 2}


def test_several_calls_in_a_turn(make: Callable[..., Made]) -> None:
    two = f"[{call('3 + 5')}, {call('8 + 1')}]"
    made = make(lambda so_far: "\\boxed{9}" if "<tool_response>" in so_far else two)
    for trajectory in made.run():
        assert (
            trajectory.text.count("<tool_response>") == 2 and "\n8\n</tool_response>\n<tool_response>\n9\n" in trajectory.text
        )
        assert [use.tool for use in trajectory.steps[0].uses] == ["calculator"] * 2
        assert trajectory.steps[0].as_text == "<calculator>3 + 5</calculator>\n<calculator>8 + 1</calculator>"
    assert made.loop.stats.tool_calls == {"calculator": 4}
    limited = make(lambda so_far: two, env={"max_tool_calls": 1}).run()
    assert {(t.end, len(t.steps)) for t in limited} == {("tool_limit", 1)} and {t.reward for t in limited} == {0.0}


def test_a_malformed_call_is_told_and_not_recorded(make: Callable[..., Made]) -> None:
    two = f'[{call("3 + 5")}, {{"name": "calculator", "arguments": "8 + 1"}}]'
    made = make(lambda so_far: "\\boxed{9}" if "<tool_response>" in so_far else two)
    for trajectory in made.run():
        assert [use.error for use in trajectory.steps[0].uses] == [None, "malformed"]
        assert "must be a JSON object" in trajectory.steps[0].observation
        assert trajectory.steps[0].as_text == "<calculator>3 + 5</calculator>"


@pytest.mark.parametrize(
    ("rollout", "steps"), [({"max_response_tokens": 12}, 1), ({"max_step_tokens": 12}, 1), ({"max_steps": 1}, 1)]
)
def test_a_budget_that_ends_a_turn_leaves_no_answer(make: Callable[..., Made], rollout: dict[str, int], steps: int) -> None:
    script = solve if "max_steps" in rollout else lambda so_far: "It is \\boxed{9}. " * 9
    for trajectory in make(script, **rollout).run():
        assert (trajectory.end, trajectory.reward, len(trajectory.steps)) == ("length", 0.0, steps)
        assert trajectory.predicted == "" and not trajectory.format_ok


def test_a_result_that_does_not_fit_ends_it(make: Callable[..., Made]) -> None:
    made = make(max_response_tokens=40)
    for trajectory in made.run():
        assert trajectory.end == "length" and trajectory.unfitting_tokens > 0
        assert len(trajectory.token_ids) <= 40


def test_branches_share_tokens_and_go_their_own_way(make: Callable[..., Made]) -> None:
    made = make(group_size=4, num_hybrid=0, branching=BranchingSettings(initial=1, base_prob=1.0))
    first, *branches = made.run()
    assert made.loop.stats.forks > 0 and branches[0].own_start > 0
    start = branches[0].own_start
    assert first.token_ids[:start] == branches[0].token_ids[:start] and branches[0].end == "answer"
    opening = list(made.chat.opening.token_ids)
    assert first.token_ids[start - len(opening) : start] == opening


def test_the_format_of_an_answer(make: Callable[..., Made]) -> None:
    reward = {"format": 0.25, "bad_format": -1.0}
    for said, expected in (("So \\boxed{9}", 1.25), ("9", 0.0), ("\\boxed{9} or \\boxed{8}", -1.0)):
        made = make(lambda so_far, said=said: said, env={"reward": reward})
        assert {t.reward for t in made.run()} == {expected}


def test_a_row_may_offer_fewer_tools(make: Callable[..., Made]) -> None:
    made = make(
        lambda so_far: "\\boxed{9}" if "tool_response" in so_far else call("1 + 1"), env={"tools": ["calculator", "python"]}
    )
    (trajectory, _) = made.run(Question("q", "?", "9", tools=("python",)))
    assert "there is no tool 'calculator'; the tools are: python" in trajectory.text


def test_a_job_and_its_environment_speak_one_format(smollm2: Path) -> None:
    env = ToolEnv({"tools": ["calculator"]})
    with pytest.raises(ValueError, match=r"env_config.protocol.format = 'tags' with protocol.format = 'native'"):
        make_protocol(tokenizer_of("qwen25", smollm2), ProtocolSettings(format="native"), env)

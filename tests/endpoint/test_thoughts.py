"""Templates that leave out thoughts of earlier turns: each request has the tokens that a server would make of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_agents
import pytest
from calculator_turns import CALCULATOR
from chat_templates import ScriptedTurns
from families import RELEASED, tokenizer_for
from test_agents import Made

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.types import TokenKind, Trajectory

pytestmark = pytest.mark.process  # vLLM asks the machine what it is

BY_TEMPLATE = {released.template: released for released in RELEASED}
CALLS_AND_ANSWERS = (("I add.", "3 + 5 + 1"), ("So it is nine.", "It is 9."), ("Once more.", "9 + 1"), ("Ten, then.", "It is 10."))


def as_served(thoughts: str, said: str) -> dict[str, Any]:
    """A turn of the policy as a server has it, with the fields of thoughts that templates read."""
    turn: dict[str, Any] = {"role": "assistant", "content": "" if "+" in said else said}
    if "+" in said:
        function = {"name": "calculator", "arguments": {"expression": said}}
        turn["tool_calls"] = [{"id": "000000001", "type": "function", "function": function}]
    return {**turn, **dict.fromkeys(("reasoning", "reasoning_content", "thinking"), thoughts)}


class Policy(ScriptedTurns):
    """Writes a conversation's turns, one after the other."""

    def __init__(self, tokenizer: Any, turns: list[str]) -> None:
        super().__init__(tokenizer, lambda so_far: "")
        self.turns: Iterator[str] = iter(turns)

    def _complete(self, request: GenerationRequest) -> Completion:
        text = next(self.turns)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        assert ids[-1] in request.end_ids, text
        n = len(ids)
        return Completion(request.request_id, ids, [-0.5] * n, [1.0] * n, text, "", "eos", self.policy_version)


class Served:
    """One agent with two questions, a policy that thinks before each turn, and a template."""

    def __init__(self, template: str, smollm2: Path, agent: str = "two_questions", **rollout: Any) -> None:
        pytest.importorskip("trl")
        own_agents.sent.clear()
        self.tokenizer = tokenizer_for(BY_TEMPLATE[template], smollm2)
        named = {"agent": f"own_agents:{agent}"}
        rollout = {"group_size": 1, "max_response_tokens": 2000, "max_prompt_tokens": 2000, **rollout}
        self.made = Made(self.tokenizer, env=named, make_reader=vllm_call_reader, **rollout)
        self.chat = self.made.agents.chat_with([CALCULATOR])
        self.turns = [as_served(*turn) for turn in CALLS_AND_ANSWERS]

    def text(self, messages: list[Any], opening: bool) -> str:
        """What the template writes."""
        told = {"tools": [CALCULATOR], "tokenize": False, "add_generation_prompt": opening}
        return str(self.tokenizer.apply_chat_template(messages, **told))

    def written(self, turn: dict[str, Any]) -> str:
        """A turn as the template writes it at the end of a conversation, from its opening to the token that ends it."""
        asked, end = [{"role": "user", "content": "?"}], self.chat._end
        opened, whole = self.text(asked, True), self.text([*asked, turn], False)
        assert whole.startswith(opened)
        if "tool_calls" in turn:
            end = self.chat._template.call_end
        return whole[len(opened) :].partition(end)[0] + end

    def run(self, turns: list[str] | None = None, chance: float = 0.0) -> Trajectory:
        """The trajectory of the agent."""
        self.policy = Policy(self.tokenizer, turns or [self.written(turn) for turn in self.turns])
        self.made.engine = self.made.loop.engine = self.policy
        try:
            (trajectory,) = self.made.run(chance)
        finally:
            self.made.loop.close()
        return trajectory

    def expected(self) -> list[list[int]]:
        """The tokens of each request that the agent has sent, by the template, as a server has the messages."""
        found = []
        for messages in own_agents.sent:
            turns, told = iter(self.turns), []
            for message in messages:
                told.append({**message, **next(turns)} if message["role"] == "assistant" else message)
                if message["role"] == "tool":
                    told[-1] = {**message, "tool_call_id": "000000001"}
            found.append(self.tokenizer.encode(self.text(told, True), add_special_tokens=False))
        return found


@pytest.mark.parametrize(
    ("template", "steps"),
    [
        ("qwen3", [2, 2]),
        ("qwen3_6", [2, 2]),
        ("nemotron_3_nano", [2, 2]),
        ("lfm2_2_5", [2, 2]),
        ("gemma4", [2, 2]),
        ("glm4moe", [2, 2]),
        ("gptoss", [2, 2]),
        ("qwen3_8", [4]),  # it keeps them
        ("qwen2_5", [4]),  # it has none
    ],
)
def test_requests_have_the_tokens_of_the_template(template: str, steps: list[int], smollm2: Path) -> None:
    """The loop of a question keeps thoughts, and is one sequence; behind the next question they are left out: another one."""
    served = Served(template, smollm2)
    trajectory = served.run()
    assert (trajectory.end, len(own_agents.sent)) == ("answer", 4)
    assert [len(one.steps) for one in trajectory.sequences] == steps
    assert [request.token_ids for request in served.policy.requests] == served.expected()
    trained = [one.token_ids[step.start : step.stop] for one in trajectory.sequences for step in one.steps]
    assert [served.tokenizer.decode(ids) for ids in trained] == [served.written(turn) for turn in served.turns]

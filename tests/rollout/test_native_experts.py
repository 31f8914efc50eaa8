"""What others wrote, in the model's own form: as a rollout of a policy that writes it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_templates import FAMILIES, ScriptedTurns, tokenizer_of

from rapo_rllib.batching.off_policy import ExpertSource, OffPolicyMixing
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.expert_tokens import expert_tokens
from rapo_rllib.protocol.make import RolloutProtocol, make_protocol
from rapo_rllib.protocol.worked_steps import Shown, worked_tokens
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.unaided import unaided_trajectory
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import (
    ExpertTrajectory,
    HistoryQuery,
    Question,
    RetrievedTrace,
    StepTrace,
    TokenKind,
    Trajectory,
    TrajectoryGroup,
)

QUESTION = Question("q", "What is (3 + 5) * 2 + 1?", "17")
CALLS = {"3 + 5": "8", "8 * 2": "16"}
STEPS = tuple(f"<calculator>{call}</calculator>\n<result>\n{value}\n</result>\n" for call, value in CALLS.items())
SAID = "So it is \\boxed{17}."
EXPERT = ExpertTrajectory(QUESTION, (*STEPS, f"<answer>{SAID}</answer>"), 1.0, "solver")
TRACE = StepTrace("t", QUESTION.text, "", STEPS[1], 1.0, source="expert")


class SecondStep:
    """A buffer that answers with the second step of the expert."""

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        return [[RetrievedTrace(TRACE, 0.9)] for _ in queries]


class Made:
    """A loop of one family whose policy makes the calls of the expert."""

    def __init__(self, tokenizer: Any, family: str) -> None:
        settings = ProtocolSettings(format="native", system_prompt="")
        env_config = {"max_tool_calls": 5, "scorer": "math", "tools": ["calculator"], "protocol": settings}
        self.chat: RolloutProtocol = make_protocol(tokenizer, settings, ToolEnv(env_config), vllm_call_reader)
        self.family = family
        keys = {"max_response_tokens": 900, "max_prompt_tokens": 600, "group_size": 2, "num_hybrid": 1}
        retriever = Retriever(SecondStep(), selection="nearest", top_k=1)
        envs = EnvPool(lambda: ToolEnv(env_config), "answer")
        self.loop = RolloutLoop(ScriptedTurns(tokenizer, self.write), self.chat, envs, RolloutSettings(**keys), retriever)

    def write(self, so_far: str) -> str:
        done = so_far.rpartition(QUESTION.text)[2]
        left = [call for call in CALLS if call not in done]
        turn = FAMILIES[self.family].calls(("calculator", {"expression": left[0]}), ids=["0" * 8 + "1"]) if left else SAID
        begins = {"qwen3": "<think>\n\n</think>\n\n", "mistral": "" if left else " "}  # as their templates have it
        return begins.get(self.family, "") + turn

    def run(self, chance: float = 0.0) -> TrajectoryGroup:
        try:
            (group,) = self.loop.run([QUESTION], retrieval_prob=chance)
            return group
        finally:
            self.loop.close()


def recorded(trajectory: Trajectory) -> Any:
    """All that a rollout records of what was written, shown and answered; the policy's tokens as those of an expert."""
    kinds = [TokenKind.EXPERT if kind == TokenKind.POLICY else kind for kind in trajectory.kinds]
    steps = [(step.start, step.stop, step.text, step.record, step.text_start) for step in trajectory.steps]
    shown = [(one.start, one.stop) for one in trajectory.retrievals]
    return trajectory.prompt_ids, trajectory.token_ids, kinds, trajectory.text, steps, shown


@pytest.mark.parametrize("family", FAMILIES)
def test_an_expert_is_recorded_as_a_policy_that_makes_its_calls(smollm2: Path, family: str) -> None:
    made = Made(tokenizer_of(family, smollm2), family)
    group = made.run()
    assert all(one.correct for one in group.trajectories)
    written = expert_tokens(EXPERT, group.trajectories[0].prompt_ids, made.chat)
    assert recorded(written) == recorded(group.trajectories[0])
    observed = [step.observation for step in written.steps]
    assert observed == [step.observation for step in group.trajectories[0].steps] == ["8", "16", ""]
    (mixed,) = OffPolicyMixing(ExpertSource([EXPERT], made.chat, 900), 1).mixed([group])
    assert recorded(mixed.off_policy[0]) == recorded(written)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_worked_trajectory_shows_steps_as_a_rollout_does(smollm2: Path, family: str) -> None:
    """The step that is shown is taken over: a policy that read it there goes on with the answer."""
    made = Made(tokenizer_of(family, smollm2), family)
    helped = next(one for one in made.run(chance=1.0).trajectories if one.hybrid)
    assert helped.correct and len(helped.retrievals) == 1 and len(helped.steps) == 2
    worked = worked_tokens(EXPERT, helped.prompt_ids, made.chat, {1: Shown(STEPS[1], True)})
    assert recorded(worked) == recorded(helped)
    to_its_author = replace(EXPERT, steps=(STEPS[0], f"Look.\n<retrieve>\n{STEPS[1]}</retrieve>\n{EXPERT.steps[2]}"))
    assert recorded(worked_tokens(to_its_author, helped.prompt_ids, made.chat, {})) == recorded(helped)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unaided_form_is_that_of_a_policy_that_took_all_steps(smollm2: Path, family: str) -> None:
    made = Made(tokenizer_of(family, smollm2), family)
    group = made.run(chance=1.0)
    helped, alone = sorted(group.trajectories, key=lambda one: not one.hybrid)
    own = unaided_trajectory(helped, QUESTION, "own", made.chat)
    assert own is not None and own.token_ids == alone.token_ids
    imitated = unaided_trajectory(helped, QUESTION, "imitated", made.chat)
    second = alone.steps[1]
    assert imitated is not None and alone.token_ids[: len(imitated.token_ids)] == imitated.token_ids
    trained = [index for index, kind in enumerate(imitated.kinds) if kind == TokenKind.EXPERT]
    assert trained == list(range(second.start, second.stop))


THOUGHT = "<think>\nFirst the sum.\n</think>\n\n"


@pytest.mark.parametrize("family", ["qwen25", "qwen3"])
def test_thoughts_stay(smollm2: Path, family: str) -> None:
    chat = Made(tokenizer_of(family, smollm2), family).chat
    thinking = replace(EXPERT, steps=tuple(THOUGHT + step for step in EXPERT.steps))
    written = expert_tokens(thinking, [1], chat)
    assert written.text.count("First the sum.") == 3
    assert all((step.record or "").startswith("<think>\nFirst the sum.\n</think>") for step in written.steps)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (("<calculator>1 + 1</calculator><calculator>1 + 2</calculator>", EXPERT.steps[2]), "more than one call"),
        (("I wonder.", EXPERT.steps[2]), "is read as the calls []"),
        (("<python>1 + 1</python>", EXPERT.steps[2]), "is read as the calls []"),
        ((EXPERT.steps[2], EXPERT.steps[2]), "a step before the last one calls nothing"),
    ],
)
def test_what_has_no_form_of_the_policys_own_does_not_join(smollm2: Path, steps: tuple[str, ...], why: str) -> None:
    made = Made(tokenizer_of("qwen25", smollm2), "qwen25")
    with pytest.raises(RequestError) as error:
        expert_tokens(replace(EXPERT, steps=steps), [1], made.chat)
    assert why in str(error.value)
    mixing = OffPolicyMixing(ExpertSource([replace(EXPERT, steps=steps)], made.chat, 900), 1)
    (group,) = mixing.mixed([made.run()])
    assert group.off_policy == [] and mixing.source.metrics()["unwritten"] == 1


def test_a_single_step_of_the_expert_stands_behind_what_was_given(smollm2: Path) -> None:
    made = Made(tokenizer_of("llama31", smollm2), "llama31")
    (given,) = made.loop.run([replace(QUESTION, start=STEPS[:1], expected=STEPS[1])])
    (mixed,) = OffPolicyMixing(ExpertSource([], made.chat, 900), 1).mixed([given])
    own, (expert,) = given.trajectories[0], mixed.off_policy
    assert own.correct and recorded(expert)[:2] == recorded(own)[:2]
    trained = [index for index, kind in enumerate(expert.kinds) if kind == TokenKind.EXPERT]
    assert trained == list(range(own.steps[0].start, own.steps[0].stop))

"""Trajectories that begin behind steps of an expert: what is given, by whom it is answered, and what is the policy's own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_templates import FAMILIES, ScriptedTurns, tokenizer_of
from scripted import CalculatorEnv, OneTrace, ScriptedEngine, scripted_loop

from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.buffer.growth import grown_candidates
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.protocol.make import RolloutProtocol, make_protocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.settings import BranchingSettings, ObjectiveSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.traces.transcripts import read_transcripts
from rapo_rllib.types import Question, TokenKind, Trajectory, TrajectoryGroup

PROTOCOL = ProtocolSettings(system_prompt="")
WRITTEN = ("<python>3 + 5</python>", "<python>8 * 2</python>")
START = tuple(f"{step}\n<result>\nof then\n</result>\n" for step in WRITTEN)  # a tool answered otherwise when it was written
GIVEN = f"{WRITTEN[0]}\n<result>\n8\n</result>\n{WRITTEN[1]}\n<result>\n16\n</result>\n"
QUESTION = Question("q", "What is (3 + 5) * 2 + 1?", "17", start=START)


def solve(so_far: str) -> str:
    return "<answer>17</answer>" if "\n17\n" in so_far else "<python>16 + 1</python>"


def rolled_out(
    question: Question = QUESTION,
    make_env: Any = CalculatorEnv,
    engine: ScriptedEngine | None = None,
    source: Any = None,
    retrieval_prob: float = 0.0,
    **rollout: Any,
) -> TrajectoryGroup:
    keys = {"max_response_tokens": 600, "num_hybrid": 2, **rollout}
    loop = scripted_loop(engine or ScriptedEngine(solve), make_env, source, **keys)
    try:
        (group,) = loop.run([question], retrieval_prob=retrieval_prob)
        return group
    finally:
        loop.close()


def written_by(trajectory: Trajectory, kind: TokenKind) -> str:
    pairs = zip(trajectory.token_ids, trajectory.kinds, strict=True)
    return bytes(token for token, own in pairs if own == kind).decode()


def test_the_tools_answer_now_and_the_policy_goes_on() -> None:
    group = rolled_out()
    for trajectory in group.trajectories:
        assert trajectory.text == GIVEN + "<python>16 + 1</python>\n<result>\n17\n</result>\n<answer>17</answer>"
        assert written_by(trajectory, TokenKind.GIVEN) == GIVEN == "".join(trajectory.given)
        assert written_by(trajectory, TokenKind.POLICY) == "<python>16 + 1</python><answer>17</answer>"
        assert [step.text for step in trajectory.steps] == ["<python>16 + 1</python>", "<answer>17</answer>"]
        assert trajectory.correct and trajectory.reward == 1 and len(trajectory.given) == 2


def test_only_the_policys_own_tokens_are_trained() -> None:
    group = rolled_out()
    group.trajectories[0].reward = 0.0
    (samples,), _ = sample_groups([group], ObjectiveSettings())
    own = len("<python>16 + 1</python><answer>17</answer>")
    assert [sample.num_loss_tokens for sample in samples.samples] == [own] * 4
    assert not any(sample.loss_mask[: len(GIVEN)].any() for sample in samples.samples)
    assert samples.num_tokens < len(samples.prompt_ids) + len(GIVEN) + 4 * 100  # what they begin behind is computed once


def test_none_of_its_members_retrieves_and_they_are_none_of_the_unhelped() -> None:
    source = OneTrace()
    group = rolled_out(source=source, retrieval_prob=1.0)
    assert not source.batches and not any(t.hybrid or t.retrievals for t in group.trajectories)
    values = rollout_metrics(SampleResult([group]))
    assert values["retrieval/others_count"] == 0 and values["tokens/given"] == 4 * len(GIVEN)
    parts = [values[f"tokens/{name}"] for name in ("policy", "observation", "retrieved", "given")]
    assert sum(parts) == values["tokens/response"]
    without = rolled_out(Question("q", "What is 16 + 1?", "17"), source=source, retrieval_prob=1.0)
    assert sum(t.hybrid for t in without.trajectories) == 2 and source.batches


def test_branches_share_what_they_begin_behind() -> None:
    group = rolled_out(branching=BranchingSettings(initial=1, base_prob=1.0, threshold=0.0), num_hybrid=0)
    assert len(group.trajectories) == 4
    assert {t.text for t in group.trajectories} == {group.trajectories[0].text}
    assert all(t.given == group.trajectories[0].given and t.correct for t in group.trajectories)


class EndsEarly(CalculatorEnv):
    """Ends with the second call."""

    def reset(self, **arguments: Any) -> tuple[str, dict]:
        self.calls = 0
        return super().reset(**arguments)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self.calls += 1
        observation, reward, end, truncated, info = super().step(action)
        return observation, reward, end or self.calls == 2, truncated, info


def test_an_environment_that_ends_within_the_steps_fails_the_group() -> None:
    engine = ScriptedEngine(solve)
    group = rolled_out(make_env=EndsEarly, engine=engine)
    assert not group.counted and not engine.requests
    assert group.trajectories[0].error == "the environment ends at step 2 of 2 to begin behind"


@pytest.mark.parametrize(("budget", "fits"), [(len(GIVEN), False), (len(GIVEN) + 1, True)])
def test_steps_that_leave_the_policy_nothing_fail_the_group(budget: int, fits: bool) -> None:
    group = rolled_out(max_response_tokens=budget)
    assert bool(group.counted) == fits
    assert fits or group.trajectories[0].error.endswith(f"leaves nothing of max_response_tokens = {budget}")


def test_a_step_in_which_nothing_is_written_fails_the_group() -> None:
    group = rolled_out(replace(QUESTION, start=("\n",)))
    assert not group.counted and group.trajectories[0].error == "step 1 to begin behind is empty"


class Paid(CalculatorEnv):
    """Pays every call, and tells at the end that it pays each step once more."""

    def reset(self, **arguments: Any) -> tuple[str, dict]:
        self.calls = 0
        return super().reset(**arguments)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        observation, _, end, truncated, info = super().step(action)
        self.calls += 1
        if end:
            return observation, 1.0 + 0.25 * self.calls, True, False, {**info, "step_rewards": [0.25] * self.calls}
        return observation, 0.5, False, truncated, info


def test_what_is_paid_at_given_steps_is_in_no_reward() -> None:
    trajectory = rolled_out(make_env=Paid).trajectories[0]
    assert trajectory.reward == 2.5  # 0.5 for the one call, 2.0 at the end, with what it pays for four steps
    assert trajectory.step_rewards == [0.75, 1.75]  # the last one has the rest


def test_the_policys_own_steps_enter_the_buffer_with_the_whole_history(tmp_path: Path) -> None:
    group = rolled_out(group_size=2)
    grown = grown_candidates([group], "successful", PROTOCOL)
    assert [(trace.step_index, trace.text) for trace in grown[:2]] == [
        (2, "<python>16 + 1</python>\n<result>\n17\n</result>\n"),
        (3, "<answer>17</answer>"),
    ]
    assert grown[0].history == GIVEN and grown[1].history == GIVEN + grown[0].text
    (whole, _) = grown_candidates([group], "successful", PROTOCOL, level="trajectory")
    assert whole.text == group.trajectories[0].text
    write_transcripts(str(tmp_path), "iteration_00001.jsonl", [group])
    read = list(read_transcripts(tmp_path / "iteration_00001.jsonl", Counter()))
    assert [(trace.step_index, trace.history, trace.text) for trace in read[:2]] == [
        (trace.step_index, trace.history, trace.text) for trace in grown[:2]
    ]


@pytest.mark.parametrize(
    ("wrote", "right"),
    [("<python>4 + 4</python>", True), ("<python>3 + 4</python>", False), ("<answer>17</answer>", False), ("hm", False)],
)
def test_a_single_step_is_right_where_it_does_what_the_expert_did(wrote: str, right: bool) -> None:
    row = replace(QUESTION, start=(), expected=f"{WRITTEN[0]}\n<result>\n8\n</result>\n")
    source = OneTrace()
    group = rolled_out(row, engine=ScriptedEngine(lambda so_far: wrote), source=source, retrieval_prob=1.0)
    for one in group.trajectories:
        assert (one.end, one.correct, one.reward, len(one.steps)) == ("step", right, float(right), 1)
        assert one.step_rewards == [float(right)]
    assert not source.batches and not grown_candidates([group], "successful", PROTOCOL)
    assert rollout_metrics(SampleResult([group]))["retrieval/others_count"] == 0


class Quiet(CalculatorEnv):
    """Its tool fails, or prints nothing."""

    said, error = "(no output)", None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        return self.said, 0.0, False, False, {"tool": "python", "tool_error": self.error}


class Fails(Quiet):
    """Its tool fails."""

    said, error = "ValueError", "error"


@pytest.mark.parametrize("env", [Quiet, Fails])
def test_silence_and_errors_are_no_same_result(env: type[Quiet]) -> None:
    row = replace(QUESTION, start=(), expected=f"<python>x = 1</python>\n<result>\n{env.said}\n</result>\n")
    group = rolled_out(row, make_env=env, engine=ScriptedEngine(lambda so_far: "<python>y = 2</python>"))
    assert not any(one.correct for one in group.trajectories)


def test_a_single_step_stands_behind_those_before_it() -> None:
    row = replace(QUESTION, start=START[:1], expected=START[1])  # 16 now, and "of then" when it was written
    engine = ScriptedEngine(lambda so_far: "<python>8 * 2</python>")
    group = rolled_out(row, engine=engine)
    assert all(one.correct and len(one.given) == 1 for one in group.trajectories)
    asked = bytes(engine.requests[0].token_ids).decode()
    assert asked.endswith(f"{WRITTEN[0]}\n<result>\n8\n</result>\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_turns_of_the_models_own(smollm2: Path, family: str) -> None:
    """Calls as the template writes them, read as the policy's are; the prompt and all turns are the whole conversation."""
    tokenizer = tokenizer_of(family, smollm2)
    settings = ProtocolSettings(format="native", system_prompt="")
    env_config = {"max_tool_calls": 5, "scorer": "math", "tools": ["calculator"], "protocol": settings}
    chat: RolloutProtocol = make_protocol(tokenizer, settings, ToolEnv(env_config), vllm_call_reader)
    steps = tuple(step.replace("python>", "calculator>") for step in START)
    keys = {"max_response_tokens": 600, "max_prompt_tokens": 600, "group_size": 2, "num_hybrid": 0}
    engine = ScriptedTurns(tokenizer, lambda so_far: "It is \\boxed{17}.")
    loop = RolloutLoop(engine, chat, EnvPool(lambda: ToolEnv(env_config), "answer"), RolloutSettings(**keys))
    try:
        ((one, _),) = (g.trajectories for g in loop.run([Question("q", "What is (3 + 5) * 2 + 1?", "17", start=steps)]))
    finally:
        loop.close()
    assert one.correct, one.error
    assert one.given == tuple(f"<calculator>{call}</calculator>\n<result>\n{value}\n</result>\n" for call, value in CALLS)
    given = [token for token, kind in zip(one.token_ids, one.kinds, strict=True) if kind != TokenKind.POLICY]
    functions = [{"name": "calculator", "arguments": {"expression": call}} for call, _ in CALLS]
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION.text}]
    for function, (_, value) in zip(functions, CALLS, strict=True):
        use = {"type": "function", "id": "0" * 8 + "1", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [use]})
        messages.append({"role": "tool", "content": value, "name": "calculator", "tool_call_id": use["id"]})
    schemas = ToolEnv(env_config).tool_schemas
    whole = tokenizer.apply_chat_template(messages, tools=schemas, add_generation_prompt=True, tokenize=False)
    thought = "<think>\n\n</think>\n\n" if family == "qwen3" else ""  # its template leaves out all but the newest
    assert tokenizer.decode([*one.prompt_ids, *given]).replace(thought, "") == whole


CALLS = [("3 + 5", "8"), ("8 * 2", "16")]


def test_what_a_template_cannot_write_fails_the_group_alone(smollm2: Path) -> None:
    tokenizer = tokenizer_of("qwen25", smollm2)
    settings = ProtocolSettings(format="native", system_prompt="", tool_parser="hermes")
    env_config = {"max_tool_calls": 5, "scorer": "math", "tools": ["calculator"], "protocol": settings}
    two_calls = "<calculator>3 + 5</calculator><calculator>8 * 2</calculator>"
    for template, step, error in (
        (tokenizer.chat_template, two_calls, "more than one call"),
        (tokenizer.chat_template, "I wonder.", "is read as the calls []"),
        (tokenizer.chat_template.replace("call.function.arguments | tojson", "raise_exception('no')"), WRITTEN_NATIVE, "no"),
    ):
        tokenizer.chat_template = template
        chat: RolloutProtocol = make_protocol(tokenizer, settings, ToolEnv(env_config), vllm_call_reader)
        engine, envs = (
            ScriptedTurns(tokenizer, lambda so_far: "It is \\boxed{17}."),
            EnvPool(lambda: ToolEnv(env_config), "answer"),
        )
        keys = {"max_response_tokens": 600, "max_prompt_tokens": 600, "group_size": 2, "num_hybrid": 0}
        loop = RolloutLoop(engine, chat, envs, RolloutSettings(**keys))
        try:
            begun, whole = loop.run([Question("q", "What?", "17", start=(step,)), Question("w", "What?", "17")])
        finally:
            loop.close()
        assert not begun.counted and all(t.start_refused and error in t.error for t in begun.trajectories), error
        assert all(t.correct for t in whole.trajectories)


WRITTEN_NATIVE = "<calculator>3 + 5</calculator>"

"""The agent on a scripted engine: the order of answers, what is under way meanwhile, and what an attempt says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted import ByteTokenizer, CalculatorEnv, ScriptedEngine, solve

from rapo_rllib.agents.agent import Attempt, OffPolicyAgent, in_words
from rapo_rllib.errors import AgentError, RequestError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import Completion, Failure
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import EXPERT, Question, TokenKind

QUESTIONS = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1)) for i in range(9)]
PROTOCOL = ProtocolSettings(system_prompt="")
SIZE = 2


class Foreign(ScriptedEngine):
    """As an endpoint is: it knows no logprobs, counts tokens by itself, and may fail at a request that it has accepted."""

    def __init__(self, fails: Callable[[str], Exception | None] = lambda request_id: None, **options: Any) -> None:
        super().__init__(solve, **options)
        self.fails = fails

    def poll(self) -> list[Completion | Failure]:  # type: ignore[override]
        return [self._foreign(completion) for completion in super().poll()]

    def _foreign(self, completion: Completion) -> Completion | Failure:
        error = self.fails(completion.request_id)
        if isinstance(error, RequestError):
            return Failure(completion.request_id, error)
        if error is not None:
            raise error
        return replace(completion, logprobs=None, entropies=None, versions=None, num_sampled=7)


def make_agent(engine: ScriptedEngine, at_once: int = 4, seed: int | None = 1, make_env: Any = CalculatorEnv) -> OffPolicyAgent:
    settings = RolloutSettings(group_size=SIZE, max_response_tokens=400, max_prompt_tokens=400)
    return OffPolicyAgent(engine, ChatProtocol(ByteTokenizer(), PROTOCOL), EnvPool(make_env, "answer"), settings, at_once, seed)


def places(engine: ScriptedEngine) -> list[int]:
    """Questions in the order in which the engine was first asked them."""
    return list(dict.fromkeys(int(request.request_id.split("/")[1][1:]) for request in engine.requests))


class Leisurely(ScriptedEngine):
    """Takes a moment for each poll, and many polls for the last member of the first question."""

    def __init__(self, polls: int) -> None:
        super().__init__(solve, lambda request: polls if f"/q0/{SIZE - 1}" in request.request_id else 1)
        self.most = 0

    def poll(self) -> list[Completion]:
        self.most = max(self.most, self.num_unfinished)
        time.sleep(0.002)
        return super().poll()


@pytest.mark.parametrize(("at_once", "seed"), [(1, 1), (SIZE, 1), (SIZE, None), (4, 1)])
def test_a_slow_attempt_holds_up_no_other_question_and_no_more_are_under_way_than_may_be(
    at_once: int, seed: int | None
) -> None:
    engine = Leisurely(600)
    agent, ended = make_agent(engine, at_once, seed), list[int]()
    found = [answered.question.id for answered in agent.answers(iter(QUESTIONS), lambda: ended.append(1))]
    agent.close()
    assert sorted(found) == [question.id for question in QUESTIONS] and len(ended) == SIZE * len(QUESTIONS)
    assert found[0 if at_once == 1 else -1] == "q0" and engine.most < at_once + SIZE


def test_what_is_complete_is_given_back_before_an_error_ends_it() -> None:
    class Refused(Leisurely):
        def poll(self) -> list[Completion]:
            if len(places(self)) > 3:
                raise AgentError("wrong key")
            return super().poll()

    agent, found = make_agent(Refused(10**6), at_once=SIZE), list[str]()
    with pytest.raises(AgentError, match="wrong key"):
        for answered in agent.answers(QUESTIONS, lambda: None):
            found.append(answered.question.id)
    agent.close()
    assert found == ["q1", "q2"]  # q0 is not complete


def test_what_is_left_when_nobody_wants_more_answers() -> None:
    engine, ended = ScriptedEngine(solve, lambda request: 10**6 if "/q1/" in request.request_id else 1), list[int]()
    agent = make_agent(engine)
    answers = agent.answers(QUESTIONS, lambda: ended.append(1))
    first = next(answers)
    assert len(ended) >= SIZE == len(first.attempts) and engine.num_unfinished > 0
    answers.close()
    assert engine.num_unfinished == 0 and sorted(places(engine)) in ([0, 1], [0, 1, 2])
    engine.latency = lambda request: 1
    again = [answered.question.id for answered in agent.answers(QUESTIONS[:3], lambda: None)]
    agent.close()
    assert sorted(again) == ["q0", "q1", "q2"]


def test_a_question_that_is_only_a_seed_has_the_text_of_its_reset() -> None:
    class Asks(CalculatorEnv):
        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return "What is 3 + 1?", {}

    class Refuses(CalculatorEnv):
        def reset(self, **options: Any) -> Any:
            raise OSError("no")

    for make_env, text in ((Asks, "What is 3 + 1?"), (Refuses, "(seed)")):
        agent = make_agent(ScriptedEngine(solve), make_env=make_env)
        (answered,) = agent.answers([Question("s", "(seed)", "4", seed=3)], lambda: None)
        agent.close()
        assert answered.question == Question("s", text, "4", seed=3)


def test_an_attempt_by_an_author_whose_logprobs_are_not_known() -> None:
    agent = make_agent(Foreign())
    (answered,) = agent.answers(QUESTIONS[3:4], lambda: None)
    for attempt in answered.attempts:
        assert attempt.steps == ("<python>3 + 1</python>\n<result>\n4\n</result>\n", "<answer>4</answer>")
        assert (attempt.reward, attempt.end, attempt.tokens, attempt.tool_calls) == (1.0, "answer", 14, 1)
        assert (attempt.correct, attempt.format_ok, attempt.failed, attempt.error) == (True, True, False, "")
    agent.close()
    ours = make_agent(ScriptedEngine(solve))
    (answered,) = ours.answers(QUESTIONS[3:4], lambda: None)
    assert {attempt.tokens for attempt in answered.attempts} == {len("<python>3 + 1</python><answer>4</answer>")}
    ours.close()


def test_what_it_writes_is_never_taken_for_the_policys_own() -> None:
    settings = RolloutSettings(group_size=SIZE, num_hybrid=0, max_response_tokens=400, max_prompt_tokens=400)
    for engine, kind, origin in ((Foreign(), TokenKind.EXPERT, EXPERT), (ScriptedEngine(solve), TokenKind.POLICY, "rollout")):
        loop = RolloutLoop(engine, ChatProtocol(ByteTokenizer(), PROTOCOL), EnvPool(CalculatorEnv, "answer"), settings)
        (group,) = loop.run(QUESTIONS[:1])
        loop.close()
        for trajectory in group.trajectories:
            written = sum(step.stop - step.start for step in trajectory.steps)
            assert (trajectory.num_tokens(kind), trajectory.origin, trajectory.correct) == (written, origin, True)
            assert trajectory.num_tokens(kind) + trajectory.num_tokens(TokenKind.OBSERVATION) == len(trajectory.token_ids)
            assert trajectory.num_generated == (written if kind == TokenKind.POLICY else 0)


def failing(error: Exception, names: Sequence[str]) -> Callable[[str], Exception | None]:
    return lambda request_id: error if request_id in names else None


def test_a_request_that_fails_costs_its_attempt() -> None:
    agent = make_agent(Foreign(failing(RequestError("too long"), ["0/q1/0/2"])))
    found = list(agent.answers(QUESTIONS[:3], lambda: None))
    agent.close()
    failed = [(a.question.id, n, one) for a in found for n, one in enumerate(a.attempts) if one.failed]
    ((question, sample, attempt),) = failed
    assert (question, sample, attempt.end, attempt.error) == ("q1", 0, "error", "too long")
    assert (len(attempt.steps), attempt.tokens) == (1, 7)


@pytest.mark.parametrize(("predicted", "f1", "same"), [("Paris", 1.0, 1.0), ("in Paris", 2 / 3, 0.0), (None, 0.0, 0.0)])
def test_an_answer_in_words_has_f1_and_exact_match(predicted: str | None, f1: float, same: float) -> None:
    attempt = in_words(Attempt((), 0.0, "answer", predicted=predicted), Question("q", "Capital?", "Paris", source="b/qa"))
    assert (attempt.f1, attempt.exact_match) == (pytest.approx(f1), same)


def test_an_agent_that_cannot_be_asked_ends_the_answers_and_leaves_nothing() -> None:
    engine = Foreign(failing(AgentError("wrong key"), ["0/q1/0/2"]))
    agent = make_agent(engine)
    with pytest.raises(AgentError, match="wrong key"):
        list(agent.answers(QUESTIONS, lambda: None))
    assert engine.num_unfinished == 0
    agent.close()

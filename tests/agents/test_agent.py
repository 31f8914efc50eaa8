"""The agent on a scripted engine: the order of answers, what is under way meanwhile, and what an attempt says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from scripted import ByteTokenizer, CalculatorEnv, ScriptedEngine

from rapo_rllib.agents.agent import HELD, OffPolicyAgent
from rapo_rllib.errors import AgentError, RequestError, UnansweredError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import Completion, Failure
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import EXPERT, Question, TokenKind

QUESTIONS = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1)) for i in range(9)]
PROTOCOL = ProtocolSettings(system_prompt="")
SIZE = 2


def solve(so_far: str) -> str:
    question = so_far.rsplit("What is ", 1)[1]
    if "<result>" not in question:
        return f"<python>{question.split('?')[0]}</python>"
    return f"<answer>{question.rsplit('<result>', 1)[1].split('</result>')[0].strip()}</answer>"


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


class SlowFirst(ScriptedEngine):
    """Writes nothing for the first question until it was asked ``others`` steps of other questions, and is asked no more."""

    def __init__(self, others: int) -> None:
        super().__init__(solve)
        self.others, self.busy, self.gives_up = others, 0.0, time.monotonic() + 60

    def poll(self) -> list[Completion]:
        now, waiting = time.monotonic(), {name: run for name, run in self._running.items() if "/q0/" in name}
        asked = sum("/q0/" not in request.request_id for request in self.requests)
        if asked < self.others or len(waiting) < len(self._running):
            self.busy = now
        if now > min(self.busy + 0.3, self.gives_up):
            return super().poll()
        self._running = {name: run for name, run in self._running.items() if name not in waiting}
        found = super().poll()
        self._running.update(waiting)
        return found


def places(engine: ScriptedEngine) -> list[int]:
    """Questions in the order in which the engine was first asked them."""
    return list(dict.fromkeys(int(request.request_id.split("/")[1][1:]) for request in engine.requests))


@pytest.mark.parametrize("seed", [1, None])
def test_seeded_it_answers_in_the_order_of_the_questions_else_as_they_are_finished(seed: int | None) -> None:
    agent = make_agent(SlowFirst(others=4 * SIZE), seed=seed)
    found = [answered.question.id for answered in agent.answers(QUESTIONS, lambda: None)]
    agent.close()
    in_order = [question.id for question in QUESTIONS]
    assert sorted(found) == in_order and (found == in_order) == (seed is not None)


@pytest.mark.parametrize(("at_once", "begun"), [(1, 1), (2, 1), (4, 9)])
def test_no_more_is_begun_than_may_be_under_way_or_held(at_once: int, begun: int) -> None:
    engine = SlowFirst(others=2 * SIZE * (begun - 1))
    agent, most = make_agent(engine, at_once), 0

    def note() -> None:
        nonlocal most
        most = max(most, engine.num_unfinished)

    answers = agent.answers(iter(QUESTIONS), note)
    assert next(answers).question.id == "q0"
    assert sorted(places(engine)) == list(range(begun)) and begun in (1, 1 + HELD * at_once // SIZE)
    assert most < at_once + SIZE
    assert len(list(answers)) == len(QUESTIONS) - 1
    agent.close()


class Leisurely(ScriptedEngine):
    """Takes a moment for each poll, and many polls for the last member of the first question."""

    def __init__(self, polls: int) -> None:
        super().__init__(solve, lambda request: polls if f"/q0/{SIZE - 1}" in request.request_id else 1)

    def poll(self) -> list[Completion]:
        time.sleep(0.002)
        return super().poll()


@pytest.mark.parametrize("seed", [1, None])
def test_another_question_begins_while_one_attempt_of_the_last_is_slow(seed: int | None) -> None:
    engine = Leisurely(600)
    agent = make_agent(engine, at_once=SIZE, seed=seed)
    assert len(list(agent.answers(QUESTIONS, lambda: None))) == len(QUESTIONS)
    agent.close()
    asked = [request.request_id for request in engine.requests]
    late = max(place for place, name in enumerate(asked) if f"/q0/{SIZE - 1}" in name)
    assert sum("/q0/" not in name for name in asked[:late]) >= HELD * SIZE // 2


def test_what_is_complete_is_given_back_before_an_error_ends_it() -> None:
    class Refused(Leisurely):
        def poll(self) -> list[Completion]:
            if len({name.split("/")[1] for name in (request.request_id for request in self.requests)}) > 3:
                raise AgentError("wrong key")
            return super().poll()

    agent, found = make_agent(Refused(10**6), at_once=SIZE), list[str]()
    with pytest.raises(AgentError, match="wrong key"):
        for answered in agent.answers(QUESTIONS, lambda: None):
            found.append(answered.question.id)
    agent.close()
    assert found == ["q1", "q2"]  # behind q0, which is not complete


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
    assert again == ["q0", "q1", "q2"]


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
        assert (attempt.reward, attempt.end, attempt.num_tokens, attempt.num_tool_calls) == (1.0, "answer", 14, 1)
        assert (attempt.correct, attempt.format_ok, attempt.agent_failed, attempt.error) == (True, True, False, "")
    agent.close()
    ours = make_agent(ScriptedEngine(solve))
    (answered,) = ours.answers(QUESTIONS[3:4], lambda: None)
    assert {attempt.num_tokens for attempt in answered.attempts} == {len("<python>3 + 1</python><answer>4</answer>")}
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


@pytest.mark.parametrize(("error", "agent_failed"), [(UnansweredError("busy"), True), (RequestError("too long"), False)])
def test_a_request_that_fails_costs_its_attempt(error: Exception, agent_failed: bool) -> None:
    agent = make_agent(Foreign(failing(error, ["0/q1/0/2"])))
    found = list(agent.answers(QUESTIONS[:3], lambda: None))
    agent.close()
    failed = [(a.question.id, n, one) for a in found for n, one in enumerate(a.attempts) if one.end != "answer"]
    ((question, sample, attempt),) = failed
    assert (question, sample, attempt.end, attempt.error) == ("q1", 0, "error", str(error))
    assert (attempt.agent_failed, len(attempt.steps), attempt.num_tokens) == (agent_failed, 1, 7)


def test_an_agent_that_cannot_be_asked_ends_the_answers_and_leaves_nothing() -> None:
    engine = Foreign(failing(AgentError("wrong key"), ["0/q1/0/2"]))
    agent = make_agent(engine)
    with pytest.raises(AgentError, match="wrong key"):
        list(agent.answers(QUESTIONS, lambda: None))
    assert engine.num_unfinished == 0
    agent.close()

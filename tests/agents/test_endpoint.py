"""An endpoint as agent, over real HTTP: what it is sent, what becomes of its answers, and its failures."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from local_service import Reply, Request, local_service
from sums import Solver, write_sums

from rapo_rllib.agents.agent import AnsweredQuestion, OffPolicyAgent
from rapo_rllib.agents.endpoint import EndpointEngine, EndpointOptions, WrittenStep, written_step
from rapo_rllib.envs.questions import Questions
from rapo_rllib.errors import AgentError, ServiceError
from rapo_rllib.models.loading import load_tokenizer
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import Completion, Failure, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.settings import ModelSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory

STOP = ("</python>", "</answer>")


@pytest.fixture(scope="module")
def chat(small_model) -> ChatProtocol:
    settings = ProtocolSettings(examples=(("1 + 1?", "<answer>\\boxed{2}</answer>"),))
    return ChatProtocol(load_tokenizer(ModelSettings(small_model)), settings, ("python",))


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> dict[str, Any]:
    """``env_config`` of six sums."""
    return {"dataset": str(write_sums(tmp_path_factory.mktemp("sums"), 6)), "tools": ["python"], "max_tool_calls": 2}


def options(url: str, **changes: Any) -> EndpointOptions:
    return EndpointOptions(f"{url}/v1", "solver", **({"timeout_s": 5.0, "concurrency": 6} | changes))


def solved(url: str, chat: ChatProtocol, env_config: dict[str, Any], number: int = 6, **changes: Any) -> list[AnsweredQuestion]:
    """What an agent makes of the first questions, four attempts each."""
    settings = RolloutSettings(group_size=4, max_response_tokens=changes.pop("max_response_tokens", 128), temperature=0.7)
    engine = EndpointEngine(options(url, **changes), chat)
    agent = OffPolicyAgent(engine, chat, EnvPool(lambda: Questions(env_config), "answer"), settings, at_once=6, seed=1)
    ended: list[int] = []
    try:
        asked = Questions.questions(env_config, "train")[:number]
        found = sorted(agent.answers(asked, lambda: ended.append(1)), key=lambda answered: answered.question.id)
    finally:
        agent.close()
    assert len(ended) == 4 * number
    return found


def test_questions_are_solved_with_tools_in_the_protocol(chat, sums):
    solver = Solver()
    with local_service(solver) as server:
        found = solved(server.url, chat, sums)
    assert [answered.question.id for answered in found] == [f"sums-{i}" for i in range(1, 7)]
    for index, answered in enumerate(found):
        for attempt in answered.attempts:
            call, answer = attempt.steps
            pattern = r"<think>Way \d+\.</think><python>print\({0} \+ {1}\)</python>\n<result>\n{2}\n</result>\n"
            assert re.fullmatch(pattern.format(index, index + 3, 2 * index + 3), call.replace("{", "").replace("}", ""))
            right = answer == f"<answer>\\boxed{{{2 * index + 3}}}</answer>"
            assert (attempt.reward > 0) == right and attempt.end == "answer" and attempt.tokens == 24
    assert 0 < sum(attempt.reward > 0 for answered in found for attempt in answered.attempts) < 24
    assert solver.asked == {f"sums-{i}": 4 for i in range(1, 7)} and len(server.requests) == 48


def test_what_an_endpoint_is_sent(chat, sums, monkeypatch):
    monkeypatch.setenv("AGENT_API_KEY", "very-secret")
    with local_service(Solver()) as server:
        solved(server.url, chat, sums, number=1, extra={"top_p": 0.9, "stop": None})
    first = next(request for request in server.requests if len(request.json["messages"]) == 4)
    second = next(request for request in server.requests if len(request.json["messages"]) == 6)
    assert first.headers["authorization"] == "Bearer very-secret"
    body = first.json
    assert (body["model"], body["temperature"], body["max_tokens"], body["top_p"]) == ("solver", 0.7, 128, 0.9)
    assert "stop" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][-1]["content"] == "What is 0 + 3?"
    assert second.json["messages"][-1] == {"role": "user", "content": "<result>\n3\n</result>"}
    assert second.json["messages"][-2]["content"].endswith("<python>print(0 + 3)</python>")
    assert second.json["max_tokens"] < 128  # what is left of the budget
    assert len({request.json["seed"] for request in server.requests}) == 8


def request_behind_one_step(chat: ChatProtocol) -> GenerationRequest:
    """The second step of a trajectory whose first one called Python."""
    trajectory = Trajectory("q", (), question_text="What is 1 + 2?")
    step = trajectory.append_expert(chat.encode("<python>1</python>"), "<python>1</python>")
    step.observation = "1"
    question = Question("q", "What is 1 + 2?", "3")
    return GenerationRequest("q/2", (), 5, STOP, "</answer>", question=question, trajectory=trajectory)


def polled(engine: EndpointEngine) -> list[Completion | Failure]:
    """What comes of the requests that are under way."""
    found: list[Completion | Failure] = []
    while engine.num_unfinished:
        found += engine.poll()
    return found


@pytest.mark.parametrize(
    ("reply", "text", "finish", "ends"),
    [
        ("<python>1", "<python>1</python>", "stop", False),
        ("<answer>2", "<answer>2</answer>", "stop", True),  # it has ended its turn, as an expert's step does
        ("I give up.", "I give up.", "eos", True),
    ],
)
def test_a_step_has_the_tokens_of_the_policy_and_no_logprobs(chat, reply, text, finish, ends):
    answer = {"choices": [{"message": {"content": reply}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    with local_service(lambda _: Reply(answer)) as server:
        engine = EndpointEngine(options(server.url), chat)
        engine.submit(request_behind_one_step(chat))
        (completion,) = polled(engine)
        engine.close()
    tokens = [*chat.encode(text), *(chat.end_ids[:1] if ends else [])]
    assert completion == Completion("q/2", tokens, None, None, text, "", finish, 0, num_sampled=3)


def test_what_is_aborted_never_completes(chat):
    asked, released = threading.Event(), threading.Event()

    def answer(request: Request) -> Reply:
        if not asked.is_set():
            asked.set()
            released.wait(20)
        return Reply(choice("x"))

    with local_service(answer) as server:
        engine = EndpointEngine(options(server.url, timeout_s=30, concurrency=1), chat)
        for name in "abc":
            engine.submit(replace(request_behind_one_step(chat), request_id=name))
        assert asked.wait(20)
        engine.abort(["a", "b"])
        assert engine.num_unfinished == 1
        assert [ended.request_id for ended in polled(engine)] == ["c"] and not released.is_set()
        released.set()
        engine.close()
    assert len(server.requests) == 2


def choice(text: Any, finish: str = "stop", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": finish, **fields}]}


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (choice("<python>1"), "<python>1</python>", "stop"),
        (choice("<think>a</think><answer>2"), "<think>a</think><answer>2</answer>", "stop"),
        (choice("<python>1</python>"), "<python>1</python>", "stop"),  # it was told to keep the string
        (choice("<python>1</python>\n<result>9</result><answer>9</answer>"), "<python>1</python>", "stop"),  # it went on
        (choice("<answer>5 <python>"), "<answer>5 <python></python>", "stop"),
        (choice("<python>1", "length"), "<python>1", "length"),
        (choice("I give up."), "I give up.", "eos"),
        (choice("<python>1", stop_reason=None), "<python>1", "eos"),  # vLLM says that the turn ended
        (choice("<python>1", stop_reason=151645), "<python>1", "eos"),
        (choice("<python>1", stop_reason="</python>"), "<python>1</python>", "stop"),
        ({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}, "", "eos"),
        (choice("a\ud800b"), "a?b", "eos"),
        (choice([{"type": "text", "text": "<answer>"}, {"text": "2</answer>"}]), "<answer>2</answer>", "stop"),  # in parts
    ],
)
def test_where_a_step_ends(reply, text, finish):
    assert written_step(reply, STOP) == WrittenStep(text, finish, None)
    for said, counted in ((7, 7), ("7", None)):
        assert written_step(reply | {"usage": {"completion_tokens": said}}, STOP).num_tokens == counted


@pytest.mark.parametrize("reply", [[], {}, {"choices": []}, {"choices": [{"finish_reason": "stop"}]}, {"error": "overloaded"}])
def test_an_answer_that_is_no_completion(reply):
    with pytest.raises(ServiceError, match="no completion"):
        written_step(reply, STOP)


def in_turn(*replies: Reply) -> Solver:
    """These replies first, then right ones."""
    return Solver(lambda number: replies[number - 1] if number <= len(replies) else None)


def test_what_passes_costs_nothing(chat, sums):
    passing = (
        Reply(status=429, headers={"retry-after": "0"}),
        Reply(status=500),
        Reply(b"<html>"),
        Reply(b'{"choices": [', headers={"content-length": "999"}),  # the connection is cut
        Reply({}, delay_s=3.0),
    )
    with local_service(in_turn(*passing)) as server:
        found = solved(server.url, chat, sums, number=2, timeout_s=2.0)
    assert all(attempt.end == "answer" for answered in found for attempt in answered.attempts)
    assert len(server.requests) == 16 + len(passing)


def test_a_refused_request_costs_its_trajectory(chat, sums):
    with local_service(in_turn(Reply({"error": "too long"}, 400), Reply({"error": "who?"}))) as server:
        (answered,) = solved(server.url, chat, sums, number=1)
    failed = [attempt for attempt in answered.attempts if attempt.end == "error"]
    assert sorted(attempt.error for attempt in failed) == [
        "agent answers with something that is no completion",
        'agent answers with status 400: {"error": "too long"}',
    ]
    assert all(attempt.failed for attempt in failed) and len(answered.attempts) == 4


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_is_hopeless_ends_the_build_and_shows_no_key(chat, sums, monkeypatch, status):
    monkeypatch.setenv("AGENT_API_KEY", "very-secret")
    reply = Reply({"error": "wrong key very-secret"}, status)
    with local_service(lambda _: reply) as server, pytest.raises(AgentError, match=r"status \d+.*wrong key \*\*\*") as caught:
        solved(server.url, chat, sums)
    assert "very-secret" not in repr(caught.value) and "AGENT_API_KEY" in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "told"),
    [(None, "agent does not answer (ConnectError)"), (Reply(b"[" * 100_000), "agent answers with something that is not JSON")],
)
def test_no_answer_and_nesting_without_an_end_cost_the_attempts(chat, sums, monkeypatch, reply, told):
    monkeypatch.setattr("rapo_rllib.agents.endpoint.ATTEMPTS", 1)
    with local_service(lambda _: reply) as server:
        (answered,) = solved(server.url if reply else "http://127.0.0.1:1", chat, sums, number=1)
    assert all(attempt.failed and attempt.error.startswith(told) for attempt in answered.attempts)


def test_a_key_among_the_fields_of_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--agent-extra.api_key \(its value is not shown\)") as refused:
        options("http://127.0.0.1:1", extra={"api_key": "sekrit"})
    assert "sekrit" not in str(refused.value)

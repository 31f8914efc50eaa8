"""Queries for the steps of a trajectory are those of its rollout; what is preferred to a step, and what is not."""

from __future__ import annotations

import pytest
from test_loop import QUESTIONS, TRACE, OneTrace, make_loop
from tiny_tokenizers import byte_tokenizer

from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.compared_steps import NotPreferred, preferred_step, step_queries
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import PreferredStep, Question, Trajectory

CHAT = ChatProtocol(byte_tokenizer(), ProtocolSettings())
QUESTION = Question("q", "7 + 5 * 3 - 4", "32")
RESULT = "\n<result>\n12\n</result>\n"


def calls_twice(so_far: str) -> str:
    asked = so_far.rsplit("What is ", 1)[1]
    return "<answer>2</answer>" if asked.count("</python>") - asked.count("<python>9") > 1 else "<python>1 + 1</python>"


@pytest.mark.parametrize("asked_with", ["generated", "history"])
def test_a_step_is_looked_up_as_its_rollout_would_have(asked_with: str) -> None:
    source = OneTrace()
    settings = {"group_size": 1, "num_hybrid": 1, "max_response_tokens": 900, "retrieval_query": asked_with}
    (group,) = make_loop(calls_twice, source, **settings).run(QUESTIONS[:1], retrieval_prob=1.0)
    (trajectory,) = group.trajectories
    found = step_queries(trajectory, group.question, ProtocolSettings(), asked_with == "history")
    asked = [query for batch in source.batches for query in batch]
    assert len(found) == len(trajectory.steps) == 3 and found[0].history == ""
    # after each completed step the rollout asked; what it was shown then is part of the next history, or not
    assert [query.history for query in asked] == [
        history.removesuffix(TRACE.text).strip() if asked_with == "history" else history
        for history in (query.history for query in found[1:])
    ]
    assert {(query.question, query.question_id, query.answers) for query in found} == {("What is 0 + 1?", "q0", ("1",))}
    assert (TRACE.text in found[1].history) == (asked_with == "history")


def written(*texts: str) -> Trajectory:
    made = Trajectory("q", CHAT.encode("the prompt"), question_text=QUESTION.text, end="answer")
    for text in texts:
        tokens = CHAT.encode(text)
        made.append_policy(tokens, [-1.0] * len(tokens), [1.0] * len(tokens)).text = text
        made.append_observation(CHAT.encode(RESULT))
    return made


def preferred(text: str, max_tokens: int = 500) -> PreferredStep | NotPreferred:
    return preferred_step(written("<calc>7+5</calc>", "<answer>12</answer>"), 1, text, QUESTION, CHAT, max_tokens)


def test_the_buffers_step_stands_in_the_policys_form_up_to_its_result() -> None:
    found = preferred("<calc>12*3</calc>" + RESULT)
    assert found == PreferredStep(1, tuple(CHAT.encode("<calc>12*3</calc>")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<answer>12</answer>\n", NotPreferred.SAME),
        ("<answer>31</answer>", NotPreferred.ANSWERS),
        ("It is 32. <calc>32*1</calc>" + RESULT, NotPreferred.ANSWERS),  # holds the accepted answer
    ],
)
def test_what_is_not_preferred(text: str, reason: NotPreferred) -> None:
    assert preferred(text) is reason


def test_a_step_that_passes_the_budget_is_not_preferred() -> None:
    start, step = len(CHAT.encode("<calc>7+5</calc>" + RESULT)), "<calc>12*3</calc>"
    assert isinstance(preferred(step, start + len(CHAT.encode(step))), PreferredStep)
    assert preferred(step, start + len(CHAT.encode(step)) - 1) is NotPreferred.TOO_LONG

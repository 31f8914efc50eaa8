"""A trajectory that retrieved, as it would read without help: what is left, what stands in its place, what is trained."""

from __future__ import annotations

import pytest
from tiny_tokenizers import byte_tokenizer

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.unaided import add_unaided, unaided_trajectory
from rapo_rllib.settings import ObjectiveSettings, ProtocolSettings
from rapo_rllib.types import FALLBACK, Question, RetrievedTrace, StepTrace, TokenKind, Trajectory, TrajectoryGroup

CHAT = ChatProtocol(byte_tokenizer(), ProtocolSettings())
QUESTION = Question("q", "7 + 5 * 3 - 4", "32")
ADD, TIMES, MINUS = ("<calc>7+5</calc>", "12"), ("<calc>12*3</calc>", "36"), ("<calc>36-4</calc>", "32")


def result(value: str) -> str:
    return f"\n<result>\n{value}\n</result>\n"


def step(call: tuple[str, str]) -> str:
    return call[0] + result(call[1])


def trajectory(*parts: str | tuple[str, str], reward: float = 1.0) -> Trajectory:
    """``("w", text)``: the policy wrote it; ``("o", text)``: a tool's result; ``("s", text)``: a step trace that it read."""
    made = Trajectory("q", CHAT.encode("the prompt"), reward=reward, hybrid=True, end="answer")
    for kind, text in parts:
        tokens = CHAT.encode(text)
        if kind == "w":
            made.append_policy(tokens, [-1.0] * len(tokens), [1.0] * len(tokens))
        elif kind == "o":
            made.append_observation(tokens)
        else:
            trace = StepTrace("t", QUESTION.text, "", text, 1.0, source=FALLBACK if text == "Nothing." else "expert")
            made.append_retrieved(CHAT.encode(CHAT.retrieved_text(text)), RetrievedTrace(trace, 0.9))
            made.retrievals[-1].answer = "32" if "<answer>" in text else ""
    return made


def read(found: Trajectory) -> str:
    """The text, with what is trained in [brackets]."""
    text, trained = "", False
    for token, kind in zip(found.token_ids, found.kinds, strict=True):
        if (kind == TokenKind.EXPERT) != trained:
            text, trained = text + ("]" if trained else "["), not trained
        text += CHAT.tokenizer.decode([token])
    return text + "]" * trained


HELPED = trajectory(
    *(("w", ADD[0]), ("o", result("12")), ("s", step(TIMES)), ("w", MINUS[0]), ("o", result("32"))),
    ("w", "<answer>32</answer>"),
)


ADDED, ANSWER = (("w", ADD[0]), ("o", result("12"))), "<answer>32</answer>"
TWICE = (
    *(*ADDED, ("s", step(ADD)), ("w", TIMES[0]), ("o", result("36")), ("s", "Look <calc>1</calc>")),
    ("w", "<answer>36</answer>"),
)
# who is shown the answer need not work it out: nothing behind it is trained without it, and it is imitated by nobody
TOLD = (*ADDED, ("s", ANSWER), ("w", ANSWER))
# the result of a tool tells it too; but who writes the call himself has worked it out
LAST = (*ADDED, ("s", step(MINUS)), ("w", ANSWER))
# an answer to another question ends the form as well: the policy would end its turn with it
WRONG = (*ADDED, ("s", "<answer>5</answer>"), ("w", TIMES[0]))
LATER = (*ADDED, ("s", step(TIMES)), ("w", "<think>so</think>"), ("s", ANSWER), ("w", ANSWER))


@pytest.mark.parametrize(
    ("made", "how", "expected"),
    [
        # the rendered result follows the call, as it does where the policy has written it; what comes behind is not needed
        (HELPED, "imitated", f"[{TIMES[0]}]{result('36')}"),
        (HELPED, "own", f"[{TIMES[0]}]{result('36')}[{MINUS[0]}]{result('32')}[{ANSWER}]"),
        (trajectory(*TWICE), "imitated", f"[{ADD[0]}]{result('12')}{TIMES[0]}{result('36')}[Look <calc>1</calc>]"),
        (trajectory(*TOLD), "imitated", None),
        (trajectory(*TOLD), "own", None),
        (trajectory(*LAST), "own", f"[{MINUS[0]}]{result('32')}[{ANSWER}]"),
        (trajectory(*WRONG), "imitated", None),
        (trajectory(*LATER), "own", f"[{TIMES[0]}]{result('36')}[<think>so</think>]"),
        (trajectory(*ADDED, ("s", "Nothing."), ("w", TIMES[0])), "own", f"[{TIMES[0]}]"),  # the fallback text is no step
    ],
    ids=["a step", "and its own", "several", "told", "told, own", "by a result", "of another", "told later", "fallback"],
)
def test_shown_steps_in_the_policys_own_form(made: Trajectory, how: str, expected: str | None) -> None:
    found = unaided_trajectory(made, QUESTION, how, CHAT)
    assert (found and read(found)) == (expected and step(ADD) + expected)


@pytest.mark.parametrize("how", ["imitated", "own"])
def test_only_what_worked_is_learned_with_the_weight_of_a_trajectory(how: str) -> None:
    """Its own length is in the weight: without help there is more or less to train than in the trajectory itself."""
    plain = trajectory(("w", "abcd"), reward=0.0)
    group = TrajectoryGroup(QUESTION, [HELPED, plain])
    try:
        add_unaided([group], how, CHAT)
        objective = ObjectiveSettings(retrieval_advantage_weight=0.0)
        (samples,) = TrainingBatch.from_groups([group], objective).groups
        helped, unaided, other = samples.samples
        assert [s.off_policy for s in samples.samples] == [False, True, False]
        assert unaided.retrieved_share == 0 and not unaided.rollout_logprobs.any()
        assert unaided.advantages[0] == helped.advantages[0] > 0 > other.advantages[0]
        # eq. 11: each trajectory weighs 1 / (G Q), whatever its length
        assert [s.weight * s.num_loss_tokens for s in samples.samples] == pytest.approx([0.5] * 3)
        HELPED.reward, plain.reward = 0.0, 1.0
        (samples,) = TrainingBatch.from_groups([group], objective).groups
        assert [s.off_policy for s in samples.samples] == [False, False]
    finally:
        HELPED.reward, HELPED.unaided = 1.0, None


def test_the_papers_setting_adds_nothing() -> None:
    add_unaided([TrajectoryGroup(QUESTION, [HELPED])], "context", CHAT)
    assert HELPED.unaided is None

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


def read(found: Trajectory | None) -> str:
    """The text, with what is trained in [brackets]."""
    assert found is not None
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


def test_a_shown_step_is_imitated_in_the_policys_own_form() -> None:
    # the rendered result follows the call, as it does where the policy has written it; what comes behind is not needed
    assert read(unaided_trajectory(HELPED, QUESTION, "imitated", CHAT)) == f"{step(ADD)}[{TIMES[0]}]{result('36')}"


def test_both() -> None:
    wanted = f"{step(ADD)}[{TIMES[0]}]{result('36')}[{MINUS[0]}]{result('32')}[<answer>32</answer>]"
    assert read(unaided_trajectory(HELPED, QUESTION, "own", CHAT)) == wanted


def test_several_shown_steps() -> None:
    twice = trajectory(
        *(
            ("w", ADD[0]),
            ("o", result("12")),
            ("s", step(ADD)),
            ("w", TIMES[0]),
            ("o", result("36")),
            ("s", "Look <calc>1</calc>"),
        ),
        ("w", "<answer>36</answer>"),
    )
    imitated = f"{step(ADD)}[{ADD[0]}]{result('12')}{TIMES[0]}{result('36')}[Look <calc>1</calc>]"
    assert read(unaided_trajectory(twice, QUESTION, "imitated", CHAT)) == imitated


def test_an_answer_that_was_shown_is_not_learned() -> None:
    """Who is shown the answer need not work it out: nothing behind it is trained without it, and it is imitated by nobody."""
    parts = (("w", ADD[0]), ("o", result("12")))
    told = trajectory(*parts, ("s", "<answer>32</answer>"), ("w", "<answer>32</answer>"))
    assert all(unaided_trajectory(told, QUESTION, how, CHAT) is None for how in ("imitated", "own"))
    # the result of a tool tells it too; but who writes the call himself has worked it out
    last = trajectory(*parts, ("s", step(MINUS)), ("w", "<answer>32</answer>"))
    assert read(unaided_trajectory(last, QUESTION, "own", CHAT)).endswith(f"[{MINUS[0]}]{result('32')}[<answer>32</answer>]")
    # an answer to another question ends the form as well: the policy would end its turn with it
    wrong = trajectory(*parts, ("s", "<answer>5</answer>"), ("w", TIMES[0]))
    assert unaided_trajectory(wrong, QUESTION, "imitated", CHAT) is None


def test_it_ends_before_the_step_that_tells() -> None:
    later = trajectory(
        *(("w", ADD[0]), ("o", result("12")), ("s", step(TIMES)), ("w", "<think>so</think>"), ("s", "<answer>32</answer>")),
        ("w", "<answer>32</answer>"),
    )
    assert read(unaided_trajectory(later, QUESTION, "own", CHAT)).endswith("[<think>so</think>]")


def test_the_fallback_text_is_no_step() -> None:
    nothing = trajectory(("w", ADD[0]), ("o", result("12")), ("s", "Nothing."), ("w", TIMES[0]))
    assert read(unaided_trajectory(nothing, QUESTION, "own", CHAT)) == f"{step(ADD)}[{TIMES[0]}]"


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

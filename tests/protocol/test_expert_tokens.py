r"""An expert's trajectory as tokens: what it wrote is trained, what its tools answered is not."""

from __future__ import annotations

import pytest
from tiny_tokenizers import byte_tokenizer

from rapo_rllib.envs.word_problems.env import WordProblems
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.expert_tokens import does_the_same, expert_tokens, split_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Question, TokenKind

ANSWER = "So it is <answer>\\boxed{8}</answer>"
RESULT = "\n<result>\n8\n</result>\n"
CALL = f"<think>Add.</think><python>3 + 5</python>{RESULT}"


@pytest.mark.parametrize(
    ("step", "written"),
    [
        (f"<python>3 + 5</python>{RESULT}", "<python>3 + 5</python>"),
        (f"<think>add</think><search>x</search>{RESULT}", "<think>add</think><search>x</search>"),
        ("<answer>8</answer>", "<answer>8</answer>"),
        # a tool that prints tags: all of its output is an observation
        ("<python>f()</python>\n<result>\na\n<result>\n8\n</result>\n</result>\n", "<python>f()</python>"),
        ("<python>f()</python>\n<result>\n<b></b>\n<result>\n8\n</result>\n", "<python>f()</python>"),
        # what is only mentioned is no result
        (f"<think>a <result> comes</think><python>1</python>{RESULT}", "<think>a <result> comes</think><python>1</python>"),
        (
            r"<think>I saw <result>.</think><answer>\boxed{8}</answer>",
            r"<think>I saw <result>.</think><answer>\boxed{8}</answer>",
        ),
    ],
)
def test_a_step_is_cut_behind_its_call(step: str, written: str) -> None:
    assert split_observation(step, ProtocolSettings()) == (written, step[len(written) :])


def test_tokens_of_a_real_expert() -> None:
    tokenizer = byte_tokenizer()
    chat = ChatProtocol(tokenizer, ProtocolSettings(), ("python",))
    expert = next(iter(WordProblems.expert_trajectories({"steps": [2, 2]})))
    result = expert_tokens(expert, [1, 2, 3], chat, policy_version=7)
    assert (result.origin, result.off_policy, result.policy_version, result.prompt_ids) == ("expert", True, 7, [1, 2, 3])
    assert (result.reward, result.correct, result.end) == (1.0, True, "answer")
    assert tokenizer.decode(result.token_ids) == "".join(expert.steps) + "<|im_end|>" == result.text + "<|im_end|>"
    parts = {kind: [t for t, k in zip(result.token_ids, result.kinds, strict=True) if k == kind] for kind in TokenKind}
    calls = [split_observation(step, chat.settings) for step in expert.steps]
    assert tokenizer.decode(parts[TokenKind.EXPERT]) == "".join(call for call, _ in calls) + "<|im_end|>"
    assert tokenizer.decode(parts[TokenKind.OBSERVATION]) == "".join(seen for _, seen in calls)
    assert parts[TokenKind.POLICY] == parts[TokenKind.RETRIEVED] == []
    assert result.num_trained == len(parts[TokenKind.EXPERT]) and set(result.logprobs) == {0.0}
    assert [result.token_ids[s.start : s.stop] for s in result.steps[:2]] == [chat.encode(call) for call, _ in calls[:2]]


def test_a_trajectory_that_stops_at_a_result_has_no_end_of_turn() -> None:
    chat = ChatProtocol(byte_tokenizer(), ProtocolSettings())
    cut = ExpertTrajectory(Question("q", "?"), (f"<python>3 + 5</python>{RESULT}",), 1.0, "x")
    assert chat.end_ids[0] not in expert_tokens(cut, [1], chat).token_ids


def test_the_last_step_ends_with_one_token_the_usual_one() -> None:
    chat = ChatProtocol(byte_tokenizer(), ProtocolSettings())
    chat.end_ids = [7, 8]  # the template's, the tokenizer's
    answered = ExpertTrajectory(Question("q", "?"), ("<answer>8</answer>",), 1.0, "x")
    assert expert_tokens(answered, [1], chat).token_ids == [*chat.encode("<answer>8</answer>"), 7]


@pytest.mark.parametrize("behind", ["", "\n", " I hope this helps.</answer>"])
def test_an_expert_ends_where_the_policy_would(behind: str) -> None:
    """Behind the answer the policy writes one token, which is to be the end of its turn: no newline before it."""
    chat = ChatProtocol(byte_tokenizer(), ProtocolSettings())
    first = f"<python>3 + 5</python>{RESULT}"
    expert = ExpertTrajectory(Question("q", "?"), (first, f"So:\n<answer>8</answer>{behind}"), 1.0, "x")
    trajectory = expert_tokens(expert, [1], chat)
    final = [*chat.encode("So:\n<answer>8</answer>"), chat.end_ids[0]]
    assert trajectory.token_ids[-len(final) :] == final
    assert trajectory.text == f"{first}So:\n<answer>8</answer>"
    without = ExpertTrajectory(Question("q", "?"), ("It is 8.\n",), 1.0, "x")
    assert expert_tokens(without, [1], chat).token_ids == [*chat.encode("It is 8.\n"), chat.end_ids[0]]


@pytest.mark.parametrize(
    ("written", "observation", "step", "same"),
    [
        ("<python>3+5</python>", "", CALL, True),  # the call alone decides
        ("Let me see. <python>3 + 5</python>", "Error", CALL, True),
        ("<python>print(8)</python>", "8", CALL, True),  # another way to the same result
        ("<python>print(8)</python>", " 8\n", CALL, True),
        ("<python>print(9)</python>", "9", CALL, False),
        ("<python>pass</python>", "", "<python>x</python>\n<result>\n\n</result>\n", False),  # nothing is no result
        ("<search>3 + 5</search>", "8", CALL, False),
        ("<answer>\\boxed{8}</answer>", "", CALL, False),  # it was to call
        ("<python>3 + 5</python>", "8", ANSWER, False),  # it was to answer
        ("<answer>8</answer>", "", ANSWER, True),
        ("<answer>\\boxed{9}</answer>", "", ANSWER, False),
        ("I do not know", "", CALL, False),
        ("I do not know", "", ANSWER, False),
        ("I do not know", "", "Neither do I", False),
        ("<act>up</act>", "", "<act>up</act>", True),  # a move in a game
        ("<act>up</act>", "", "<act>down</act>", False),
        ("", "", "", False),
        ("<python>print('</result>')</python>", "</result>", "<python>1</python>\n<result>\n&lt;/result>\n</result>\n", True),
    ],
)
def test_calls_results_and_answers(written: str, observation: str, step: str, same: bool) -> None:
    assert does_the_same(written, observation, step, ProtocolSettings(), ["python", "search"]) == same

"""When a step does what another one does."""

from __future__ import annotations

import pytest

from rapo_rllib.protocol.same_step import does_the_same
from rapo_rllib.settings import ProtocolSettings

SETTINGS = ProtocolSettings()
CALL = "<think>Add.</think><python>3 + 5</python>\n<result>\n8\n</result>\n"
ANSWER = "So it is <answer>\\boxed{8}</answer>"


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
    assert does_the_same(written, observation, step, SETTINGS, ["python", "search"]) == same

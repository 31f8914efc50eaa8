"""What an episode's budget has room for: the next request, an observation, a step trace; to the last token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calculator_turns import CALCULATOR
from chat_templates import tokenizer_of

from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.rollout.episode import Episode, RunPlan
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, RetrievedTrace, StepTrace, Trajectory

TRACE = RetrievedTrace(StepTrace("t", "", "", "3 + 5 is 8.", 1.0), 0.9)
USED = 10  # response tokens that are there


@pytest.fixture(scope="module")
def chat(smollm2: Path) -> NativeProtocol:
    made = NativeProtocol(tokenizer_of("qwen25", smollm2), ProtocolSettings(format="native"), [CALCULATOR])
    assert len(made.opening.token_ids) > 1
    return made


def episode(chat: NativeProtocol, room: int, begun: bool = False, **settings: Any) -> Episode:
    """One with ``room`` response tokens left, behind a prompt of three."""
    rollout = RolloutSettings(max_response_tokens=USED + room, **settings)
    plan = RunPlan(chat, rollout, 1, 1, 1.0, 0, 0, False, False, None)
    made = Episode("0/q/0", Question("q", "3 + 5?", "8"), plan, Trajectory("q", [1, 2, 3], hybrid=True))
    made.trajectory.append_policy([5] * USED, [-1.0] * USED, [1.0] * USED)
    made.turn_open = begun
    return made


@pytest.mark.parametrize(
    ("room", "step", "most"), [(6, 8, 6), (8, 8, 8), (9, 8, 8), (90, 8, 8), (90, None, 90), (1, 1, 1), (1, None, 1)]
)
def test_a_request_asks_for_no_more_than_is_left_and_no_more_than_a_step(
    chat: NativeProtocol, room: int, step: int | None, most: int
) -> None:
    assert episode(chat, room, max_step_tokens=step).request().max_tokens == most


def test_an_observation_leaves_room_for_the_opening_of_the_next_turn_and_a_token(chat: NativeProtocol) -> None:
    length = len(chat.observation("8", episode(chat, 1).turn).token_ids) + len(chat.opening.token_ids)
    for room in (1, length - len(chat.opening.token_ids) + 1, length):
        full = episode(chat, room)
        assert not full.append_observation("8") and full.trajectory.unfitting_tokens == length
        assert len(full.trajectory.token_ids) == USED
    fitting = episode(chat, length + 1)
    assert fitting.append_observation("8") and not fitting.trajectory.unfitting_tokens
    fitting.open_turn()
    assert fitting.request().max_tokens == fitting.remaining_tokens == 1


@pytest.mark.parametrize("counted", ["response", "prompt_and_response"])
def test_a_step_trace_leaves_room_for_the_opening_of_the_next_turn_and_a_token(chat: NativeProtocol, counted: str) -> None:
    """The prompt of three tokens counts where the settings say so."""
    shown, opening = len(chat.retrieved(TRACE.trace.text).token_ids), len(chat.opening.token_ids)
    length = shown + opening + (3 if counted == "prompt_and_response" else 0)
    for room in (shown + 1, length):
        full = episode(chat, room, retrieval_budget=counted)
        assert not full.append_retrieved(TRACE) and not full.trajectory.retrievals
        assert len(full.trajectory.token_ids) == USED
    fitting = episode(chat, length + 1, retrieval_budget=counted)
    assert fitting.append_retrieved(TRACE)
    fitting.open_turn()
    assert fitting.remaining_tokens == length + 1 - shown - opening >= 1
    begun = episode(chat, length - opening + 1, begun=True, retrieval_budget=counted)  # its opening stands there already
    assert begun.append_retrieved(TRACE)
    assert not episode(chat, length - opening, begun=True, retrieval_budget=counted).append_retrieved(TRACE)

"""Which attempts are kept."""

import pytest

from rapo_rllib.agents.agent import Attempt
from rapo_rllib.agents.build import best_attempts


def attempts(*rewards: float, **fields) -> list[Attempt]:
    """One attempt per reward, each a text of its own."""
    return [Attempt((f"step {index}",), reward, "answer", **fields) for index, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rewards", "keep", "min_reward", "kept"),
    [
        ((0.1, 0.9, 0.5, 0.7), 2, None, [1, 3]),
        ((1.0, 1.0, 1.0), 2, None, [0, 1]),  # of equal ones the first
        ((0.0, -1.0), 5, None, []),  # never one whose reward is not positive ...
        ((0.0, -1.0, 0.2), 5, -0.5, [2, 0]),  # ... unless asked
        ((0.3, 0.8), 5, 0.8, [1]),
        ((), 5, None, []),
        ((1.0,) * 16, 5, None, [0, 1, 2, 3, 4]),
    ],
)
def test_the_best_are_kept(rewards, keep, min_reward, kept):
    found = best_attempts(attempts(*rewards), keep, min_reward)
    assert [attempt.steps for attempt in found] == [(f"step {index}",) for index in kept]


def test_equal_texts_are_kept_once():
    same = Attempt(("a", "b"), 1.0, "answer")
    assert best_attempts([same, same, *attempts(0.5)], 2) == [same, *attempts(0.5)]


@pytest.mark.parametrize(
    "attempt",
    [Attempt(("a",), 1.0, "error", "env.step failed"), Attempt((), 1.0, "eos"), Attempt(("a", ""), 1.0, "eos")],
    ids=["failed", "no step", "an empty step"],
)
def test_what_cannot_be_a_trace_is_left_out(attempt):
    assert best_attempts([attempt], 5) == []

"""Who takes values waits for no later step: a device that is played by events which are done when the test says so."""

from __future__ import annotations

from typing import Any

import torch

from rapo_rllib.rollout.vllm.late_values import LateValues, _Step


class Event:
    """Of a copy on a device."""

    def __init__(self, done: bool) -> None:
        self.done, self.waited = done, False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = self.waited = True


def added(values: LateValues, numbers: list[float], places: list[tuple[str, int, int]], done: bool) -> Event:
    """A step of a device: entropies are the numbers, logprobs their negatives."""
    event: Any = Event(done)
    values._steps.append(_Step(torch.tensor([numbers, [-number for number in numbers]]), places, event))
    return event


def test_on_a_cpu_all_is_there_at_once() -> None:
    values = LateValues()
    values.add(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), [("a", 0, 7), ("b", 0, 7)])
    values.add(torch.tensor([[3.0], [-3.0]]), [("a", 1, 7)])
    assert values.take(["a"], [2]) == [{0: (1.0, -1.0, 7), 1: (3.0, -3.0, 7)}]
    assert values.take(["a", "b"], [0, 1]) == [{}, {0: (2.0, -2.0, 7)}]


def test_later_values_of_a_position_replace_earlier_ones() -> None:
    values = LateValues()
    for number, version in ((1.0, 7), (2.0, 8)):
        values.add(torch.tensor([[number], [-number]]), [("a", 0, version)])
    assert values.take(["a"], [1]) == [{0: (2.0, -2.0, 8)}]


def test_a_step_behind_the_last_token_is_not_waited_for_and_is_forgotten() -> None:
    values = LateValues()
    added(values, [1.0, 2.0], [("a", 0, 7), ("b", 0, 7)], done=True)
    running = added(values, [3.0, 4.0], [("a", 1, 7), ("b", 1, 7)], done=False)
    assert values.take(["a"], [1]) == [{0: (1.0, -1.0, 7)}]
    assert not running.waited
    running.done = True
    assert values.take(["b", "a"], [2, 0]) == [{0: (2.0, -2.0, 7), 1: (4.0, -4.0, 7)}, {}]
    assert not values._records


def test_a_value_that_is_missing_is_waited_for_and_no_more() -> None:
    values = LateValues()
    first = added(values, [1.0], [("a", 0, 7)], done=False)
    second = added(values, [2.0], [("a", 1, 7)], done=False)
    third = added(values, [5.0], [("b", 0, 7)], done=False)
    assert values.take(["a"], [2]) == [{0: (1.0, -1.0, 7), 1: (2.0, -2.0, 7)}]
    assert (first.waited, second.waited, third.waited) == (True, True, False)


def test_an_aborted_request_waits_for_nothing() -> None:
    values = LateValues()
    running = added(values, [1.0], [("a", 0, 7)], done=False)
    assert values.take(["a"], [0]) == [{}]
    assert not running.waited

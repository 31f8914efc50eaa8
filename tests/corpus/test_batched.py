"""Calls of many threads become few batches, each thread with its own answer or error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rapo_rllib.corpus.search_tool import Batched


class Doubling:
    """Doubles numbers; the first batch waits until it is let go. Refuses a batch with a negative number."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        self.entered.set()
        assert self.go.wait(10)
        if min(numbers) < 0:
            raise ValueError(f"negative: {numbers}")
        return [2 * number for number in numbers]


def asked(numbers: list[int], max_batch: int = 64) -> tuple[list[list[int]], list]:
    """The first number alone, then all others while it is worked on; batches, and every thread's result or exception."""
    doubling = Doubling()
    batched: Batched[int, int] = Batched(doubling, max_batch)
    with ThreadPoolExecutor(len(numbers)) as pool:
        futures = [pool.submit(batched, numbers[0])]
        assert doubling.entered.wait(10)
        futures += [pool.submit(batched, number) for number in numbers[1:]]
        while len(batched._waiting) < len(numbers) - 1:
            threading.Event().wait(0.005)
        doubling.go.set()
        return doubling.batches, [future.exception() or future.result() for future in futures]


def test_what_arrives_meanwhile_is_the_next_batch() -> None:
    batches, results = asked(list(range(100)), max_batch=200)
    assert results == [2 * number for number in range(100)]
    assert [len(batch) for batch in batches] == [1, 99]


def test_a_batch_has_its_limit_and_nobody_is_forgotten() -> None:
    batches, results = asked(list(range(100)), max_batch=30)
    assert results == [2 * number for number in range(100)]
    assert [len(batch) for batch in batches] == [1, 30, 30, 30, 9]


def test_equal_queries_are_worked_on_once() -> None:
    batches, results = asked([5, 7, 7, 7, 8])
    assert results == [10, 14, 14, 14, 16]
    assert sorted(batches[1]) == [7, 8]


def test_an_error_reaches_all_of_its_batch_and_nobody_else() -> None:
    batches, results = asked([1, 2, -3, 4])
    assert results[0] == 2
    assert [type(result) for result in results[1:]] == [ValueError] * 3
    assert len(batches) == 2


def test_a_lone_call_is_answered_at_once() -> None:
    batched: Batched[str, str] = Batched(lambda texts: [text.upper() for text in texts])
    assert [batched(text) for text in "abc"] == ["A", "B", "C"]
    with pytest.raises(ZeroDivisionError):
        Batched(lambda numbers: [1 / 0])(1)

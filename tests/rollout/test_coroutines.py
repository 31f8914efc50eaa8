"""Coroutines on futures: who goes on when, what comes out of them, and how they end; calls on threads that are given up."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from test_loop import QUESTIONS, make_loop

from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.coroutines import Coroutines, result_of

SOON_S = 30.0  # for what comes at once, however busy the machine is


def test_each_goes_on_when_its_own_future_is_done() -> None:
    coroutines, said = Coroutines(), list[str]()
    first, second = Future[str](), Future[str]()

    async def say(future: Future[str]) -> None:
        said.append(await result_of(future))

    coroutines.run(say(first))
    coroutines.run(say(second))
    coroutines.resume(0.0)
    assert (len(coroutines), said) == (2, [])
    second.set_result("second")
    coroutines.resume(0.0)
    assert (len(coroutines), said) == (1, ["second"])
    threading.Timer(0.05, first.set_result, ["first"]).start()
    coroutines.resume(SOON_S)
    assert (len(coroutines), said) == (0, ["second", "first"])
    assert 0 < coroutines.waited_s < SOON_S


def test_all_that_can_go_on_do_so_at_once() -> None:
    coroutines, went_on = Coroutines(), list[int]()

    async def twice(number: int, futures: list[Future[None]]) -> None:
        for future in futures:
            await result_of(future)
            went_on.append(number)

    done: Future[None] = Future()
    done.set_result(None)
    for number in range(3):
        coroutines.run(twice(number, [done, done]) if number == 2 else twice(number, [Future()]))
    coroutines.resume(0.0)
    assert (len(coroutines), went_on) == (2, [2, 2])


def test_what_one_raises_comes_out_and_the_others_end_where_they_wait() -> None:
    coroutines, ended = Coroutines(), list[str]()

    async def wait(name: str, future: Future[None]) -> None:
        try:
            await result_of(future)
        finally:
            ended.append(name)

    broken: Future[None] = Future()
    coroutines.run(wait("patient", Future()))
    coroutines.run(wait("broken", broken))
    broken.set_exception(OSError("the engine is gone"))
    with pytest.raises(OSError, match="the engine is gone"):
        coroutines.resume(0.0)
    assert (len(coroutines), ended) == (1, ["broken"])
    coroutines.close()
    assert (len(coroutines), ended) == (0, ["broken", "patient"])


def test_a_rollout_runs_where_an_event_loop_runs() -> None:
    """As in a notebook, which is why the loop is not ``asyncio``'s."""

    async def cell() -> list[float]:
        loop = make_loop()
        try:
            return loop.run(QUESTIONS[:1])[0].rewards
        finally:
            loop.close()

    assert asyncio.run(cell()) == [1.0] * 4


def until(reached: Any) -> None:
    deadline = time.monotonic() + SOON_S
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reached()


def test_a_call_that_is_given_up_ends_with_the_error_and_its_thread_is_replaced() -> None:
    threads, released, returned = CallThreads(1, "test"), threading.Event(), list[str]()
    caught: list[str] = []

    def hang() -> str:
        released.wait()
        returned.append("late")
        return "late"

    async def ask(call: Future[str]) -> None:
        try:
            caught.append(await result_of(call))
        except TimeoutError as error:
            caught.append(str(error))

    coroutines = Coroutines()
    hanging, queued, next_one = threads.submit(hang), threads.submit(lambda: "never"), threads.submit(lambda: "next")
    until(hanging.running)
    for call in (hanging, next_one):
        coroutines.run(ask(call))
    assert not threads.abandon(queued)  # it had not begun
    assert threads.abandon(hanging, TimeoutError("too late"))
    assert not threads.abandon(hanging)  # twice is once
    while coroutines:
        coroutines.resume(SOON_S)
    assert sorted(caught) == ["next", "too late"] and queued.cancelled()
    assert sum(t.name == "test" for t in threading.enumerate()) == 2
    released.set()
    until(lambda: returned and sum(t.name == "test" for t in threading.enumerate()) == 1)  # what it returns is no result
    assert not threads.abandon(next_one)  # it has returned
    threads.shutdown()

"""Coroutines on futures: who goes on when, what comes out of them, and how they end; searches; calls that are given up."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from scripted import CalculatorEnv, OneTrace, ScriptedEngine, TellingPool, scripted_loop, solve

from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.coroutines import Coroutines, result_of
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.retriever import Retriever, Searcher
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, TrajectoryGroup

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
    patient = wait("patient", Future())  # held here too: it is closed, not collected
    coroutines.run(patient)
    coroutines.run(wait("broken", broken))
    broken.set_exception(OSError("the engine is gone"))
    with pytest.raises(OSError, match="the engine is gone"):
        coroutines.resume(0.0)
    assert (len(coroutines), ended) == (1, ["broken"])
    coroutines.close()
    assert (len(coroutines), ended) == (0, ["broken", "patient"])


def test_who_asks_while_a_search_is_under_way_is_answered_by_the_next() -> None:
    released, batches = threading.Event(), list[int]()

    class Waits(OneTrace):
        def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
            batches.append(len(queries))
            released.wait()
            return super().retrieve(queries, top_k)

    coroutines, threads, stats, found = Coroutines(), CallThreads(1, "test"), RolloutStats(), list[str]()
    searcher = Searcher(Retriever(Waits(), selection="nearest", top_k=1), threads, stats)

    async def ask(question: str) -> None:
        trace = await searcher.search(HistoryQuery(question, ""))
        assert trace is not None
        found.append(trace.trace.id)

    for question in "abc":
        coroutines.run(ask(question))
        searcher.start(coroutines)
    released.set()
    while coroutines:
        coroutines.resume(SOON_S)
        searcher.start(coroutines)
    assert (batches, found, stats.retrieval_queries) == ([1, 2], ["t1"] * 3, 3)
    threads.shutdown()


def until(reached: Any) -> None:
    deadline = time.monotonic() + SOON_S
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reached()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
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


class MayHang(CalculatorEnv):
    """Hangs at some questions, and says that it always has: the others have time, however busy the machine is."""

    borrower: Episode
    released = threading.Event()

    def step(self, action: str) -> Any:
        if self.question.id in HUNG and "</python>" in action:
            self.borrower.env_started = -math.inf
            self.released.wait()
        return super().step(action)


HUNG = ("q17", "q4711")


@pytest.mark.parametrize("in_event_loop", [False, True], ids=["plain", "notebook"])
def test_ten_thousand_trajectories_come_to_their_end_beside_two_that_hang(in_event_loop: bool) -> None:
    MayHang.released.clear()
    settings = {"group_size": 1, "max_response_tokens": 200, "step_timeout_s": 3600.0}
    loop = scripted_loop(ScriptedEngine(solve), MayHang, pool=TellingPool, **settings)
    questions = [Question(f"q{i}", f"What is {i} + 1?", str(i + 1)) for i in range(10_000)]

    async def cell() -> list[TrajectoryGroup]:
        return loop.run(questions)

    try:
        groups = asyncio.run(cell()) if in_event_loop else loop.run(questions)
    finally:
        MayHang.released.set()
        loop.close()
    ends = {group.question.id: (t.end, t.reward, t.error) for group in groups for t in group.trajectories}
    hung = {name: ends.pop(name) for name in HUNG}
    assert set(ends.values()) == {("answer", 1.0, "")} and len(ends) == 9_998
    for end, reward, error in hung.values():
        assert (end, reward) == ("error", 0.0) and error.startswith("env.step has not returned after inf s")

"""An environment that fails costs its trajectory, once: what is counted, and what goes on."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from scripted import CalculatorEnv, OneTrace, ScriptedEngine, TellingPool, calls, scripted_loop
from test_branching import MoodyEngine, unsure_after_a_result
from test_loop import QUESTIONS

from rapo_rllib.algorithm.sampling import SampleResult
from rapo_rllib.env_runner.metrics import rollout_metrics
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import BranchingSettings
from rapo_rllib.types import TokenKind, Trajectory

Breaks = Callable[["Flaky", str], bool]  # (environment, its call) -> whether it fails here


class Flaky(CalculatorEnv):
    """Fails where it is told to; remembers whom it serves, and whether it was closed."""

    made: ClassVar[list[Flaky]] = []
    breaks: Breaks = staticmethod(lambda env, call: False)

    def __init__(self) -> None:
        super().__init__()
        self.borrower: Any = None
        self.steps, self.is_copy, self.closed = 0, False, threading.Event()
        Flaky.made.append(self)
        self._maybe("make")

    def _maybe(self, call: str) -> None:
        if Flaky.breaks(self, call):
            raise ConnectionError(f"gone in {call}")

    def reset(self, **options: Any) -> Any:
        self.steps = 0
        self._maybe("reset")
        return super().reset(**options)

    def step(self, action: str) -> Any:
        self.steps += 1
        self._maybe(f"step {self.steps}")
        return super().step(action)

    def truncate(self) -> Any:
        self._maybe("truncate")
        return 0.0, {}

    def close(self) -> None:
        self.closed.set()

    def __deepcopy__(self, memo: Any) -> Flaky:
        made = copy.copy(self)
        made.is_copy = True
        return made


@pytest.fixture(autouse=True)
def sound() -> Iterator[None]:
    yield
    Flaky.breaks, Flaky.made = staticmethod(lambda env, call: False), []  # type: ignore[assignment]


def break_where(breaks: Breaks) -> None:
    Flaky.breaks, Flaky.made = staticmethod(breaks), []  # type: ignore[assignment]


def make_loop(engine: ScriptedEngine | None = None, source: Any = None, **settings: Any) -> RolloutLoop:
    return scripted_loop(engine or ScriptedEngine(calls(2)), Flaky, source, pool=TellingPool, **{"num_hybrid": 2, **settings})


def told(trajectory: Trajectory) -> tuple:
    return (trajectory.token_ids, trajectory.kinds, trajectory.hybrid, trajectory.reward, trajectory.end, len(trajectory.steps))


def breaks_for(name: str, call: str) -> Breaks:
    return lambda env, at: at == call and env.borrower is not None and env.borrower.name == name


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("call", ["reset", "step 1", "step 2", "step 3"])
def test_it_is_left_out_of_its_group_and_all_others_are_as_without_it(
    call: str, greedy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    expected = make_loop(source=OneTrace()).run(QUESTIONS, retrieval_prob=0.5, greedy=greedy)
    name = "greedy-0/q1/3" if greedy else "0/q1/3"
    break_where(breaks_for(name, call))
    loop = make_loop(source=OneTrace())
    with caplog.at_level(logging.WARNING):
        groups = loop.run(QUESTIONS, retrieval_prob=0.5, greedy=greedy)
    failed = groups[1].trajectories[3]
    assert (failed.end, failed.reward) == ("error", 0.0) and f"gone in {call}" in failed.error
    assert loop.stats.ends == {"answer": 11, "error": 1} and len(groups[1].counted) == 3
    for group, undisturbed in zip(groups, expected, strict=True):
        for one, other in zip(group.trajectories, undisturbed.trajectories, strict=True):
            assert one is failed or told(one) == told(other)
    (message,) = caplog.messages
    step = max(int(call[-1]) - 1, 0) if call != "reset" else 0
    assert message.startswith(f"question q1, trajectory {name}, step {step}, ") and f"gone in {call}" in message


@pytest.mark.parametrize("call", ["make", "truncate"])
def test_wherever_an_environment_fails(call: str) -> None:
    break_where(lambda env, at: at == call and env is Flaky.made[0])
    loop = make_loop(group_size=2, num_hybrid=0, max_steps=1, tool_workers=1)
    (group,) = loop.run(QUESTIONS[:1])
    assert sorted(t.end for t in group.trajectories) == ["error", "length"]
    assert loop.stats.ends == {"error": 1, "length": 1}


def test_a_broken_environment_is_closed_and_lent_to_nobody() -> None:
    break_where(lambda env, call: call == "step 1" and env is Flaky.made[0])
    loop = make_loop(group_size=1, num_hybrid=0)
    loop.run(QUESTIONS[:1])
    (broken,) = Flaky.made
    assert broken.closed.wait(10) and loop.envs._idle == []
    loop.run(QUESTIONS[:1])
    assert loop.stats.ends == {"answer": 1} and loop.envs._idle == [Flaky.made[1]]


def test_one_that_never_returns_is_not_closed() -> None:
    released = threading.Event()

    def hangs(env: Flaky, call: str) -> bool:
        if call == "step 1" and env is Flaky.made[0]:
            released.wait()
        return False

    break_where(hangs)
    loop = make_loop(group_size=2, num_hybrid=0, step_timeout_s=0.5)
    (group,) = loop.run(QUESTIONS[:1])
    assert sorted(t.end for t in group.trajectories) == ["answer", "error"]
    assert not Flaky.made[0].closed.is_set(), "a thread still uses it"
    assert loop.stats.deadlines == {"step": 1}
    released.set()


@pytest.mark.parametrize("call", ["reset", "step 2"])
def test_a_deadline_that_an_environment_keeps_itself_is_counted(call: str) -> None:
    """As a client of a server does that does not answer."""

    class Remote(Flaky):
        def _maybe(self, at: str) -> None:
            try:
                if at == call and self is Flaky.made[0]:
                    raise TimeoutError
            except TimeoutError as error:
                raise RuntimeError("the server has not answered") from error

    loop = make_loop(group_size=2, num_hybrid=0)
    loop.envs = TellingPool(Remote, "answer")
    loop.run(QUESTIONS[:1])
    assert (loop.stats.ends, loop.stats.deadlines) == ({"answer": 1, "error": 1}, {call.split()[0]: 1})
    break_where(breaks_for("0/q1/0", call))
    failing = make_loop(group_size=2, num_hybrid=0)
    failing.run(QUESTIONS)
    assert failing.stats.ends["error"] == 1 and failing.stats.deadlines == {}


def test_closing_what_is_broken_delays_nobody() -> None:
    class Stuck(Flaky):
        def end_sessions(self) -> None:
            if self is Flaky.made[0]:
                time.sleep(30)

    break_where(lambda env, call: call == "step 1" and env is Flaky.made[0])
    loop = make_loop(group_size=1, num_hybrid=0)
    loop.envs = TellingPool(Stuck, "answer")
    started = time.monotonic()
    loop.run(QUESTIONS[:1])
    assert time.monotonic() - started < 20 and loop.stats.ends == {"error": 1}


def test_what_it_did_is_counted() -> None:
    break_where(breaks_for("0/q0/1", "step 2"))
    loop = make_loop(num_hybrid=0)
    groups = loop.run(QUESTIONS[:1])
    steps = ["<python>0 + 1</python>", "<python>0 + 1</python>", "<answer>1</answer>"]
    assert loop.stats.tool_calls == {"python": 3 * 2 + 1}
    generated = [trajectory.num_tokens(TokenKind.POLICY) for trajectory in groups[0].trajectories]
    assert generated == [len("".join(steps[: 2 if place == 1 else 3])) for place in range(4)]
    metrics = rollout_metrics(SampleResult(groups, [loop.stats]))
    assert metrics["tokens/generated"] == sum(generated) and metrics["tokens/discarded"] == 0
    assert (metrics["ends/answer"], metrics["ends/error"]) == (3, 1)


def test_branches_of_one_that_fails_go_on() -> None:
    break_where(lambda env, call: breaks_for("0/q0/0", "step 2")(env, call) and not env.is_copy)
    branching = BranchingSettings(initial=1)  # with others beside it, they may take all room first
    loop = make_loop(MoodyEngine(calls(2), unsure_after_a_result), branching=branching, group_size=8, num_hybrid=0)
    (group,) = loop.run(QUESTIONS[:1])
    assert loop.stats.ends == {"answer": 7, "error": 1}
    origin = group.trajectories[0]
    branches = [t for t in group.trajectories if len(t.segments) == 2 and t.segments[0] == (0, 0)]
    assert origin.failed and branches
    assert all(t.token_ids[: t.own_start] == origin.token_ids[: t.own_start] for t in branches)


def test_a_branch_that_fails_costs_itself() -> None:
    failed: list[Flaky] = []

    def breaks(env: Flaky, call: str) -> bool:
        if env.is_copy and call == "step 2" and not failed:
            failed.append(env)
            return True
        return False

    break_where(breaks)
    engine = MoodyEngine(calls(2), unsure_after_a_result)
    loop = make_loop(engine, OneTrace(), branching=BranchingSettings(), group_size=8, num_hybrid=3)
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert loop.stats.ends == {"answer": 7, "error": 1}
    assert sum(t.hybrid for t in group.trajectories) == 3
    assert not failed[0].closed.is_set(), "its origin may use what it holds"

"""A trajectory whose environment fails begins anew in a new one: what is kept of the first try, and what is not."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from scripted import ByteTokenizer, CalculatorEnv, ScriptedEngine
from test_branching import MoodyEngine, two_calls, unsure_after_a_result
from test_loop import QUESTIONS, OneTrace

from rapo_rllib.env_runner.batch import SampleResult
from rapo_rllib.env_runner.metrics import rollout_metrics
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import GenerationRequest
from rapo_rllib.rollout.env_calls import Borrower, EnvPool
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import BranchingSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, TokenKind, Trajectory, TrajectoryGroup

Breaks = Callable[["Flaky", str], bool]  # (environment, its call) -> whether it fails here


class Flaky(CalculatorEnv):
    """Fails where it is told to; remembers whom it serves, and whether it was closed."""

    made: ClassVar[list[Flaky]] = []
    breaks: Breaks = staticmethod(lambda env, call: False)

    def __init__(self) -> None:
        super().__init__()
        self.user: Any = None
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


class Pool(EnvPool):
    """Tells an environment whom it serves."""

    def acquire(self, borrower: Borrower) -> None:
        super().acquire(borrower)
        borrower.env.user = borrower


@pytest.fixture(autouse=True)
def sound() -> Iterator[None]:
    yield
    Flaky.breaks, Flaky.made = staticmethod(lambda env, call: False), []  # type: ignore[assignment]


def break_where(breaks: Breaks) -> None:
    Flaky.breaks, Flaky.made = staticmethod(breaks), []  # type: ignore[assignment]


def make_loop(engine: ScriptedEngine | None = None, source: Any = None, **settings: Any) -> RolloutLoop:
    defaults = {"group_size": 4, "num_hybrid": 2, "max_response_tokens": 400, "max_prompt_tokens": 400}
    protocol = ProtocolSettings(system_prompt="")
    return RolloutLoop(
        engine or ScriptedEngine(two_calls),
        ChatProtocol(ByteTokenizer(), protocol),
        Pool(Flaky, protocol.answer_tag),
        RolloutSettings(**{**defaults, **settings}),
        None if source is None else Retriever(source, selection="nearest", top_k=1),
    )


def told(trajectory: Trajectory) -> tuple:
    return (trajectory.token_ids, trajectory.kinds, trajectory.hybrid, trajectory.reward, trajectory.end, len(trajectory.steps))


def all_told(groups: list[TrajectoryGroup]) -> list[tuple]:
    return [told(t) for group in groups for t in group.trajectories]


def seeds(loop: RolloutLoop) -> dict[str, int | None]:
    """Of every request, by what it is called but for the try."""
    assert isinstance(loop.engine, ScriptedEngine)
    names = [request.request_id for request in loop.engine.requests]
    assert len(set(names)) == len(names), "two requests of a run are never called the same"
    return {request.request_id.replace("~1", ""): request.seed for request in loop.engine.requests}


def first_try(call: str, name: str = "0/q1/3") -> Breaks:
    return lambda env, at: at == call and env.user is not None and env.user.name == name and env.user.tries == 0


@pytest.mark.parametrize("schedule", ["continuous", "lockstep"])
@pytest.mark.parametrize("call", ["reset", "step 1", "step 2", "step 3"])
def test_the_second_try_is_what_the_first_would_have_been(call: str, schedule: str) -> None:
    undisturbed = make_loop(source=OneTrace(), rollout_schedule=schedule)
    expected = undisturbed.run(QUESTIONS, retrieval_prob=0.5)
    break_where(first_try(call))
    loop = make_loop(source=OneTrace(), rollout_schedule=schedule)
    groups = loop.run(QUESTIONS, retrieval_prob=0.5)
    assert all_told(groups) == all_told(expected)  # its coins are its own: hybrid as before, retrieval at the same steps
    assert seeds(loop) == seeds(undisturbed)
    assert (loop.stats.retries, loop.stats.ends) == (1, {"answer": 12})
    assert sum(t.retrievals != [] for t in groups[1].trajectories) > 0


def test_it_gets_a_new_environment_and_the_broken_one_is_closed_and_lent_to_nobody() -> None:
    break_where(lambda env, call: call == "step 1" and env is Flaky.made[0])
    loop = make_loop(group_size=1, num_hybrid=0)
    loop.run(QUESTIONS[:1])
    broken, second = Flaky.made
    assert broken.closed.wait(10)
    assert loop.envs._idle == [second] and not second.closed.is_set()
    break_where(lambda env, call: call == "step 1" and env is second)
    loop.run(QUESTIONS[:2])
    assert second.closed.wait(10) and second not in loop.envs._idle
    (made,) = [env for env in Flaky.made if env.user.tries]
    assert made is not second, "one that waits may be broken by the same"


def test_idle_environments_are_not_for_a_second_try() -> None:
    loop = make_loop(group_size=2, num_hybrid=0)
    loop.run(QUESTIONS[:1])
    first, second = loop.envs._idle
    break_where(lambda env, call: env in (first, second) and call == "reset")
    loop.run(QUESTIONS[:1], group_size=1)
    assert loop.stats.ends == {"answer": 1} and loop.stats.retries == 1
    assert len(loop.envs._idle) == 2


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_it_is_dropped_from_its_group_when_all_tries_have_failed(retries: int) -> None:
    break_where(lambda env, call: call == "step 2" and env.user.name == "0/q0/2")
    loop = make_loop(env_retries=retries)
    (group,) = loop.run(QUESTIONS[:1])
    assert [t.end for t in group.trajectories] == ["answer", "answer", "error", "answer"]
    assert len(group.counted) == 3
    assert "gone in step 2" in group.trajectories[2].error
    assert loop.stats.retries == retries
    assert sum(env.user.name == "0/q0/2" for env in Flaky.made) == retries + 1


@pytest.mark.parametrize("call", ["make", "truncate"])
def test_wherever_an_environment_fails(call: str) -> None:
    break_where(lambda env, at: at == call and env is Flaky.made[0])
    loop = make_loop(group_size=1, num_hybrid=0, max_steps=1)
    (group,) = loop.run(QUESTIONS[:1])
    assert [t.end for t in group.trajectories] == ["length"]
    assert loop.stats.retries == 1


def test_one_that_never_returns_is_tried_again_too() -> None:
    released = threading.Event()

    def hangs(env: Flaky, call: str) -> bool:
        if call == "step 1" and env is Flaky.made[0]:
            released.wait()
        return False

    break_where(hangs)
    loop = make_loop(group_size=2, num_hybrid=0, step_timeout_s=0.5)
    (group,) = loop.run(QUESTIONS[:1])
    assert [t.end for t in group.trajectories] == ["answer"] * 2 and loop.stats.retries == 1
    assert not Flaky.made[0].closed.is_set(), "a thread still uses it"
    released.set()


def test_closing_what_is_broken_delays_nobody() -> None:
    class Stuck(Flaky):
        def end_sessions(self) -> None:
            if self is Flaky.made[0]:
                time.sleep(30)

    break_where(lambda env, call: call == "step 1" and env is Flaky.made[0])
    loop = make_loop(group_size=1, num_hybrid=0)
    loop.envs = Pool(Stuck, "answer")
    started = time.monotonic()
    loop.run(QUESTIONS[:1])
    assert time.monotonic() - started < 20 and loop.stats.ends == {"answer": 1}


def test_what_a_failed_try_did_is_counted_and_none_of_its_tokens_is_trained() -> None:
    break_where(first_try("step 2", "0/q0/1"))
    loop = make_loop(num_hybrid=0)
    groups = loop.run(QUESTIONS[:1])
    steps = ["<python>0 + 1</python>", "<python>0 + 1</python>", "<answer>1</answer>"]
    assert loop.stats.tool_calls == {"python": 4 * 2 + 1}
    assert loop.stats.discarded_tokens == len(steps[0] + steps[1])
    for trajectory in groups[0].trajectories:
        assert trajectory.num_tokens(TokenKind.POLICY) == trajectory.num_trained == len("".join(steps))
        assert [step.text for step in trajectory.steps] == steps and not trajectory.error
    metrics = rollout_metrics(SampleResult(groups, [loop.stats]))
    assert metrics["retries"] == 1 and metrics["tokens/discarded"] == 44 and metrics["ends/answer"] == 4


def test_in_evaluation() -> None:
    break_where(first_try("step 2", "0/q0/0"))
    loop = make_loop()
    groups = loop.run(QUESTIONS, greedy=True, group_size=1)
    assert [t.end for g in groups for t in g.trajectories] == ["answer"] * 3 and loop.stats.retries == 1


def test_what_the_policy_did_wrong_is_no_failure_of_the_environment() -> None:
    says = {"?": "<python>1 / 0</python>", "</result>": "<answer>\\boxed{1}</answer>"}
    loop = make_loop(ScriptedEngine(lambda so_far: says["</result>" if "</result>" in so_far else "?"]))
    loop.envs = EnvPool(lambda: ToolEnv({}), "answer")
    (group,) = loop.run(QUESTIONS[:1])
    assert [t.end for t in group.trajectories] == ["answer"] * 4 and loop.stats.retries == 0
    assert {t.steps[0].tool_error for t in group.trajectories} == {"exception"}


def test_a_prompt_over_its_budget_is_not_tried_again() -> None:
    loop = make_loop()
    (group,) = loop.run([Question("long", "word " * 100, "1")])
    assert [t.end for t in group.trajectories] == ["error"] * 4
    assert loop.stats.retries == 0 and "over max_prompt_tokens = 400" in group.trajectories[0].error


class Recorder:
    """What an observer is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.trajectories: list[Trajectory] = []

    def __getattr__(self, name: str) -> Any:
        def note(episode: Episode, *more: Any) -> None:
            self.told.append(name)
            if name == "ended":
                self.trajectories.append(episode.trajectory)

        return note


def test_an_observer_is_told_to_forget_the_failed_try() -> None:
    break_where(first_try("step 2", "0/q0/0"))
    observer = Recorder()
    (group,) = make_loop(group_size=1, num_hybrid=0).run(QUESTIONS[:1], observer=observer)  # type: ignore[arg-type]
    whole = ["created", "started", "stepped", "stepped", "stepped", "ended"]
    assert observer.told == ["created", "started", "stepped", "failed", *whole]
    assert observer.trajectories == group.trajectories


BRANCHING = {"branching": BranchingSettings(), "group_size": 8}


class Differs(MoodyEngine):
    """Writes another sum in a second try, as unseeded sampling would."""

    def _complete(self, request: GenerationRequest) -> Any:
        self.script = two_calls if "~" not in request.request_id else lambda so_far: two_calls(so_far).replace("0 + 1", "1 + 0")
        return super()._complete(request)


@pytest.mark.parametrize("num_hybrid", [0, 3])
def test_a_trajectory_whose_branches_go_on_without_it(num_hybrid: int) -> None:
    """Its second try is no origin of theirs: nobody may take its tokens for shared ones."""
    break_where(lambda env, call: first_try("step 2", "0/q0/0")(env, call) and not env.is_copy)
    alone = {**BRANCHING, "branching": BranchingSettings(initial=1)}  # with others beside it, they may take all room first
    loop = make_loop(Differs(two_calls, unsure_after_a_result), OneTrace(), **alone, num_hybrid=num_hybrid)
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert (loop.stats.retries, loop.stats.ends) == (1, {"answer": 8})
    assert sum(t.hybrid for t in group.trajectories) == num_hybrid
    again = group.trajectories[0]
    assert "1 + 0" in again.text and again.own_start == 0
    seeds(loop)
    assert any(t.segments[0] == (0, 0) for t in group.trajectories), "it had forked before it failed"
    for one, other in itertools.combinations(group.trajectories, 2):
        if one.segments[0] == other.segments[0]:
            parted = min(t.segments[1][0] for t in (one, other) if len(t.segments) > 1)
            assert one.token_ids[:parted] == other.token_ids[:parted]


@pytest.mark.parametrize("origin_failed", [False, True])
def test_a_branch_that_fails_starts_from_the_prompt(origin_failed: bool) -> None:
    failed: list[Flaky] = []

    def breaks(env: Flaky, call: str) -> bool:
        if call == "make" and origin_failed and len(Flaky.made) <= 4:
            return True  # all that begin; a branch has tries of its own
        if env.is_copy and call == "step 2" and not failed:
            failed.append(env)
            return True
        return False

    break_where(breaks)
    loop = make_loop(MoodyEngine(two_calls, unsure_after_a_result), OneTrace(), **BRANCHING, num_hybrid=3)
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert loop.stats.retries == 1 + 4 * origin_failed and loop.stats.ends == {"answer": 8}
    assert sum(t.hybrid for t in group.trajectories) == 3
    (again,) = [t for t in group.trajectories[4:] if len(t.segments) == 1 and t.segments[0][1] >= 8]
    assert len(again.own_steps) == 3 and again.reward == group.trajectories[0].reward
    assert not failed[0].closed.is_set(), "its origin may use what it holds"
    seeds(loop)

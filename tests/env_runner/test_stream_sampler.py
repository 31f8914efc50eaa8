"""Orders to engines and answers back, by a thread, with engines that die. Ray and the engines are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.env_runner.stream import sampler as module
from rapo_rllib.env_runner.stream.ledger import QuestionLedger
from rapo_rllib.env_runner.stream.runner import Answer, Conditions, Order
from rapo_rllib.env_runner.stream.sampler import StreamSampler
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

NOW = Conditions(0.5)


class ScriptedRunner:
    """An env runner's actor: groups are complete with the next order, but for places that are held."""

    def __init__(self) -> None:
        self.version, self.name, self.orders = 0, "first", list[Order]()
        self.under_way: dict[int, Question] = {}
        self.versions: dict[int, int] = {}
        self.held: set[int] = set()
        self.dies = 0  # so many of the next orders
        self.apply = SimpleNamespace(remote=lambda function, order: Hashed((self, function, order)))

    def stream(self, order: Order) -> Answer:
        self.orders.append(order)
        time.sleep(0.005)
        if self.dies:
            self.dies -= 1
            self.under_way, self.name = {}, f"{self.name}*"
            raise ray.exceptions.RayActorError()
        for place in order.given_up:
            self.under_way.pop(place, None)
        done = [(place, self.group(place)) for place in [*self.under_way] if place not in self.held]
        if self.version >= order.least_version:
            self.under_way |= dict(order.questions)
            self.versions |= {place: self.version for place, _ in order.questions}
        stats = RolloutStats(seconds=1.0, refilled=len(done))
        return Answer(self.name, self.version, done, [*self.under_way], 2 * len(self.under_way), stats, [len(done)])

    def group(self, place: int) -> TrajectoryGroup:
        question = self.under_way.pop(place)
        return TrajectoryGroup(question, [Trajectory(question.id, (), reward=float(place % 2))], self.versions[place])


class Setting:
    """Two scripted runners and the sampler that gives them orders."""

    def __init__(self, **options: Any) -> None:
        self.runners = {1: ScriptedRunner(), 2: ScriptedRunner()}
        self.healthy = [1, 2]
        self.cursor = QuestionCursor(SeedQuestions(1000), seed=0)
        rounds = options.pop("max_rounds", 1)
        self.ledger = QuestionLedger(self.cursor, options.pop("batch_size", 4), options.pop("max_staleness", 1), False, rounds)
        sizes = {"capacity": 8, "group_size": 2, "timeout_s": 60.0, **options}
        self.sampler = StreamSampler(self, self.ledger, restore=self.restore, **sizes)
        self.restores = 0
        self._worker_manager = SimpleNamespace(actors=lambda: self.runners, set_actor_state=self.set_state)

    def healthy_worker_ids(self) -> list[int]:
        return list(self.healthy)

    def num_remote_env_runners(self) -> int:
        return 2

    def set_state(self, runner: int, healthy: bool) -> None:
        self.healthy = [one for one in self.healthy if one != runner]

    def restore(self) -> None:
        """Brings all back with the weights of today."""
        self.restores += 1
        for runner in self.runners.values():
            runner.version = self.ledger.version
        self.healthy = [1, 2]

    def move(self, version: int) -> None:
        for runner in self.runners.values():
            runner.version = version
        self.sampler.set_version(version)

    def take(self, **options: Any) -> SampleResult:
        return self.sampler.take(NOW, **options)

    def wait_until(self, condition: Any) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)


class ScriptedRay:
    """``wait`` and ``get`` of calls that are done at once."""

    exceptions = ray.exceptions

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return calls[:num_returns], calls[num_returns:]

    def get(self, call: Any) -> Answer:
        runner, function, order = call
        answer: Answer = function(runner, order)
        return answer


class Hashed(tuple):
    """A call as a key."""

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(module, "ray", ScriptedRay())
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    monkeypatch.setattr(module, "_RESTORE_EVERY_S", 0.0)
    made: list[Setting] = []

    def one(**options: Any) -> Setting:
        made.append(Setting(**options))
        return made[-1]

    yield one
    for setting in made:
        setting.sampler.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rollout-stream"]


def places(setting: Setting, result: SampleResult) -> list[int]:
    index = {question.id: place for place, question in enumerate(QuestionCursor(SeedQuestions(1000), seed=0).take(60))}
    return [index[group.question.id] for group in result.groups]


def test_batches_come_in_order_and_engines_go_on_beside_an_update(make: Any) -> None:
    setting = make()
    result = setting.take()
    assert places(setting, result) == [0, 1, 2, 3]
    assert result.retrieval_prob == 0.5 and sum(result.logged) == sum(s.refilled for s in result.stats) >= 4
    setting.wait_until(lambda: len(setting.ledger.complete) == 4)  # the next four, beside the update; no more
    time.sleep(0.1)
    assert setting.cursor.position == 8
    setting.move(1)
    assert places(setting, setting.take()) == [4, 5, 6, 7]
    asked = [place for runner in setting.runners.values() for order in runner.orders for place, _ in order.questions]
    assert len(set(asked)) == len(asked) and all(len(runner.orders) > 0 for runner in setting.runners.values())


def test_on_policy_nothing_is_handed_out_between_two_batches(make: Any) -> None:
    setting = make(max_staleness=0)
    assert places(setting, setting.take()) == [0, 1, 2, 3]
    setting.move(1)
    time.sleep(0.2)
    assert setting.cursor.position == 4 and setting.ledger.out == {}
    assert places(setting, setting.take()) == [4, 5, 6, 7]


def test_a_group_that_is_too_old_is_given_up_and_asked_again(make: Any) -> None:
    setting = make()
    for runner in setting.runners.values():
        runner.held = {3}
    assert places(setting, setting.take()) == [0, 1, 2, 4]
    setting.move(1)
    assert 3 not in places(setting, setting.take())
    for runner in setting.runners.values():
        runner.held = set()
    told = [order for runner in setting.runners.values() for order in runner.orders]
    setting.move(2)
    setting.wait_until(lambda: any(3 in o.given_up for r in setting.runners.values() for o in r.orders[:]))
    assert not any(order.given_up for order in told)
    result = setting.take()
    assert result.groups_stale == 1 and 3 in places(setting, result)
    assert [group.policy_version for group in result.groups if places(setting, SampleResult([group])) == [3]] == [2]


def test_questions_of_an_engine_that_dies_are_asked_again_when_it_is_back(make: Any) -> None:
    setting = make()
    setting.runners[2].held = set(range(100))
    assert len(places(setting, setting.take())) == 4
    setting.move(1)
    held = set(setting.runners[2].under_way)
    assert held
    setting.runners[2].dies, setting.runners[2].version, setting.runners[2].held = 1, 0, set()
    setting.wait_until(lambda: setting.restores > 0)
    taken = setting.take()
    trained = places(setting, taken)
    assert taken.env_runners_lost == 1 and taken.questions_again >= len(held)
    setting.move(2)
    again = setting.take()
    assert again.env_runners_lost == 0
    setting.move(3)
    assert held <= {*trained, *places(setting, again), *places(setting, setting.take())}
    assert setting.runners[2].version == 3


def test_an_engine_with_older_weights_does_nothing_and_gets_them(make: Any) -> None:
    """It was started anew between two orders, and nobody has noticed."""
    setting = make()
    setting.take()
    setting.move(1)
    setting.runners[1].version = 0
    setting.wait_until(lambda: setting.runners[1].version == 1)
    assert setting.restores >= 1
    result = setting.take()
    assert len(result.groups) == 4 and result.env_runners_lost == 1


def test_an_engine_that_somebody_else_brought_back_is_counted_as_lost(make: Any) -> None:
    """It was started anew and given the weights of today between two orders: only its name tells."""
    setting = make()
    assert setting.take().env_runners_lost == 0
    setting.runners[1].under_way, setting.runners[1].name = {}, "second"
    setting.move(1)
    setting.wait_until(lambda: setting.sampler._engines[1].name == "second")
    assert setting.take().env_runners_lost == 1 and setting.restores == 0


def test_engines_that_die_again_and_again_end_the_training(make: Any) -> None:
    setting = make()
    for runner in setting.runners.values():
        runner.dies = 10**6
    with pytest.raises(RuntimeError, match="died 7 times in a row while sampling, and no group came back"):
        setting.take()


def test_nobody_comes_back(make: Any) -> None:
    setting = make(recovery_timeout_s=0.1)
    setting.healthy = []
    setting.sampler._restore = lambda: None
    with pytest.raises(RuntimeError, match="no env runner came back within 0 s"):
        setting.take()


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_an_engine_that_others_work_without_for_too_long_is_counted(make: Any, max_staleness: int) -> None:
    setting = make(recovery_timeout_s=0.05, max_staleness=max_staleness)
    setting.sampler._restore = lambda: None  # it hangs where it starts
    setting.runners[2].dies = 1
    result, found = setting.take(), 0
    for version in range(1, 10_000):
        setting.move(version)
        result = setting.take()
        found += sum(stats.deadlines["restore"] for stats in result.stats)
        if found and version > 200:  # once, however long it stays away
            break
    assert found == 1 and setting.healthy == [1]


def test_an_error_while_an_engine_is_brought_back_is_raised(make: Any) -> None:
    setting = make()
    setting.healthy = [1]

    def restore() -> None:
        raise ValueError("the weights did not arrive")

    setting.sampler._restore = restore
    setting.runners[1].held = set(range(100))
    with pytest.raises(ValueError, match="the weights did not arrive"):
        setting.take()


def test_an_engine_that_does_not_answer_is_told_of(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = make(timeout_s=0.3)
    monkeypatch.setattr(module.ray, "wait", lambda calls, num_returns, timeout: (time.sleep(0.02), ([], calls))[1])
    with pytest.raises(RuntimeError, match=r"env runner \d did not answer in 0.3 s: raise sample_timeout_s"):
        setting.take()
    setting.sampler._calls.clear()


def test_groups_without_signal_are_replaced(make: Any) -> None:
    setting = make(batch_size=2, max_staleness=0, max_rounds=3)
    result = setting.take(accepts=lambda group: bool(group.rewards[0]))
    assert places(setting, result) == [1, 3] and result.groups_dropped == 2
    assert places(setting, SampleResult(result.left_out)) == [0, 2]
    setting.move(1)
    nothing = setting.take(accepts=lambda group: False)
    assert len(nothing.groups) == 2 and nothing.groups_dropped == 6 and len(nothing.left_out) == 4


def test_no_question_is_handed_out_while_the_cursors_state_is_read(make: Any) -> None:
    sampler = make().sampler

    def is_free() -> bool:
        return sampler._changed.acquire(False) and not sampler._changed.release()

    class Cursor:
        def get_state(self, untrained: list[int]) -> dict[str, Any]:
            with ThreadPoolExecutor(1) as other:
                return {"free": other.submit(is_free).result()}

    assert sampler.cursor_state(Cursor()) == {"free": False}


def test_what_is_forgotten_is_asked_again(make: Any) -> None:
    setting = make()
    setting.take()
    state = setting.sampler.cursor_state(setting.cursor)
    setting.sampler.forget()
    setting.cursor.set_state(state)
    assert setting.ledger.untrained == [] and setting.ledger.room == 8
    assert places(setting, setting.take()) == [4, 5, 6, 7]

"""Questions to env runners and back, with runners that die. The group is scripted: who gets which question is tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import rapo_rllib.env_runner.dispatch as module
from rapo_rllib.env_runner.dispatch import sample_questions
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.types import Question, TrajectoryGroup

QUESTIONS = [Question(id=f"q{index}", text="", answer="") for index in range(7)]


class ScriptedGroup:
    """Env runners by number; ``dies(number, call)`` says whether a runner is lost in a call."""

    def __init__(self, numbers: tuple[int, ...], dies: Callable[[int, int], bool] = lambda number, call: False) -> None:
        self.healthy, self.dies = list(numbers), dies
        self.calls: list[dict[int, list[str]]] = []
        self.local_env_runner: Any = None
        self.slow: tuple[int, ...] = ()  # of those that die: they live, and have not answered
        self.timeouts: list[float | None] = []

    def num_remote_env_runners(self) -> int:
        return 3

    def healthy_worker_ids(self) -> list[int]:
        return list(self.healthy)

    def foreach_env_runner(self, functions: list[str], *, kwargs: list[dict], remote_worker_ids: list[int], **_: Any) -> list:
        self.timeouts.append(_["timeout_seconds"])
        assert functions == ["sample"] * len(kwargs)
        call = len(self.calls)
        self.calls.append({n: [q.id for q in k["questions"]] for n, k in zip(remote_worker_ids, kwargs, strict=True)})
        results = []
        for number, arguments in zip(remote_worker_ids, kwargs, strict=True):
            if self.dies(number, call):
                if number not in self.slow:
                    self.healthy.remove(number)
            else:
                results.append(SampleResult([TrajectoryGroup(q, [], 0) for q in arguments["questions"]]))
        return results


def sampled(group: ScriptedGroup, restore: Callable[[], Any] = lambda: None, **options: Any) -> list[str]:
    result = sample_questions(group, QUESTIONS, restore=restore, **options)
    return [g.question.id for g in result.groups]


def test_every_question_once_in_order() -> None:
    group = ScriptedGroup((1, 2, 3))
    assert sampled(group) == [q.id for q in QUESTIONS]
    assert group.calls == [{1: ["q0", "q3", "q6"], 2: ["q1", "q4"], 3: ["q2", "q5"]}]


def test_questions_of_a_dead_runner_go_to_the_others() -> None:
    group = ScriptedGroup((1, 2, 3), lambda number, call: number == 2 and call == 0)
    assert sampled(group) == [q.id for q in QUESTIONS]
    assert group.calls[1] == {1: ["q1"], 3: ["q4"]}


def test_with_nobody_left_it_waits_for_a_restarted_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waits.append))
    group = ScriptedGroup((1, 2), lambda number, call: call == 0)
    restores = []

    def restore() -> None:
        restores.append(len(group.calls))
        if len(restores) == 3:
            group.healthy.append(2)

    assert sampled(group, restore) == [q.id for q in QUESTIONS]
    assert group.calls[1] == {2: [q.id for q in QUESTIONS]} and len(waits) == 1


def test_nobody_comes_back() -> None:
    group = ScriptedGroup((1,), lambda number, call: True)
    with pytest.raises(RuntimeError, match="no env runner came back within 0 s"):
        sampled(group, recovery_timeout_s=0.0)


def test_fewer_questions_than_runners() -> None:
    group = ScriptedGroup(tuple(range(1, 11)))
    assert sampled(group) == [q.id for q in QUESTIONS]
    assert len(group.calls[0]) == 7


def test_a_question_that_is_asked_twice_comes_back_twice() -> None:
    group = ScriptedGroup((1, 2), lambda number, call: number == 2 and call == 0)
    twice = [*QUESTIONS[:3], QUESTIONS[0]]  # the two copies go to different runners, of which one dies
    result = sample_questions(group, twice, restore=lambda: None)
    assert [g.question.id for g in result.groups] == ["q0", "q1", "q2", "q0"]
    assert group.calls == [{1: ["q0", "q2"], 2: ["q1", "q0"]}, {1: ["q1", "q0"]}]


def test_questions_that_cost_every_runner_end_the_training() -> None:
    group = ScriptedGroup((1, 2), lambda number, call: number == 1)

    def restore() -> None:
        group.healthy = [1]

    with pytest.raises(RuntimeError, match=r"died 3 times in a row while sampling 7 questions \(q0, \.\.\.\)"):
        sampled(group, restore)
    assert len(group.calls) == 3


def test_a_runner_that_does_not_answer_in_time_is_told_of() -> None:
    group = ScriptedGroup((1, 2, 3), lambda number, call: number != 1)
    group.slow = (3,)  # 2 died, 3 is busy
    with pytest.raises(RuntimeError, match=r"1 env runner\(s\) of \[1, 2, 3\] did not answer in 5 s: raise sample_timeout_s"):
        sampled(group, timeout_s=5.0)
    assert group.timeouts == [5.0] and len(group.calls) == 1

"""One batch ahead: order, checkpoints, failures."""

from __future__ import annotations

import threading

import pytest

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.env_runner.one_step_off import OneStepOffSampler
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import TrajectoryGroup


class Rollouts:
    """Takes two questions at a time; waits at the gate."""

    def __init__(self) -> None:
        self.cursor = QuestionCursor(SeedQuestions(100), seed=0)
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[str] = []
        self.fail = False
        self.ahead = OneStepOffSampler(self.cursor)

    def sample(self) -> SampleResult:
        questions = self.cursor.take(2)
        self.threads.append(threading.current_thread().name)
        self.gate.wait()
        if self.fail:
            raise RuntimeError("no engine is left")
        return SampleResult([TrajectoryGroup(question, [], 0) for question in questions])


def names(result: SampleResult) -> list[str]:
    return [group.question.id for group in result.groups]


def expected(start: int) -> list[str]:
    cursor = QuestionCursor(SeedQuestions(100), seed=0)
    cursor.take(start)
    return [question.id for question in cursor.take(2)]


def test_batches_come_in_order_and_run_beside_the_caller() -> None:
    rollouts = Rollouts()
    assert names(rollouts.ahead.take(rollouts.sample)) == expected(0)
    rollouts.gate.clear()
    rollouts.ahead.begin(rollouts.sample)
    assert not rollouts.gate.is_set()  # this thread goes on, the rollout waits
    rollouts.gate.set()
    rollouts.ahead.wait()
    assert names(rollouts.ahead.take(rollouts.sample)) == expected(2)
    assert rollouts.threads[0] == "MainThread" and rollouts.threads[1].startswith("sampling-ahead")
    rollouts.ahead.close()


def test_a_checkpoint_holds_the_questions_that_nobody_trained_on() -> None:
    rollouts = Rollouts()
    rollouts.ahead.take(rollouts.sample)
    rollouts.ahead.begin(rollouts.sample)
    rollouts.ahead.wait()
    saved = rollouts.ahead.cursor_state()
    assert saved["position"] == 2 and rollouts.cursor.position == 4
    resumed = Rollouts()
    resumed.cursor.set_state(saved)
    assert names(resumed.ahead.take(resumed.sample)) == names(rollouts.ahead.take(rollouts.sample)) == expected(2)
    assert rollouts.ahead.cursor_state()["position"] == 4
    rollouts.ahead.close()


def test_a_batch_that_was_begun_can_be_dropped() -> None:
    rollouts = Rollouts()
    rollouts.ahead.begin(rollouts.sample)
    rollouts.ahead.forget()
    rollouts.cursor.set_state({**rollouts.cursor.get_state(), "position": 0})
    assert names(rollouts.ahead.take(rollouts.sample)) == expected(0)
    rollouts.ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sampling-ahead")]


def test_a_failure_is_raised_where_it_is_waited_for() -> None:
    rollouts = Rollouts()
    rollouts.fail = True
    rollouts.ahead.begin(rollouts.sample)
    with pytest.raises(RuntimeError, match="no engine is left"):
        rollouts.ahead.wait()
    rollouts.ahead.close()

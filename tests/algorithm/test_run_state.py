"""Where a run stands: what its checkpoints say of it, and what a later run takes from them."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.algorithm import RAPO
from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.algorithm.sampling import Sampling
from rapo_rllib.algorithm.state import RunState
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question

QUESTIONS = [Question(f"q{index}", "?") for index in range(4)]


class Part:
    """A part of the run that holds something."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def get_state(self) -> Any:
        return self.held

    def set_state(self, state: Any) -> None:
        self.held = state


def run(buffer: Part | None = None, replay: Part | None = None) -> tuple[RunState, QuestionCursor]:
    cursor = QuestionCursor(QUESTIONS, seed=0)
    return RunState({"cursor": cursor, "summary": RunSummary(), "buffer": buffer, "off_policy": replay}), cursor


def test_the_traces_pass_through_a_run_without_retrieval() -> None:
    (donor, _), (idle, _) = run(Part("traces")), run()
    assert "buffer" not in idle.get_state()
    idle.set_state(donor.get_state())
    assert idle.get_state()["buffer"] == "traces"
    buffer = Part()
    run(buffer)[0].set_state(idle.get_state())
    assert buffer.held == "traces"


def test_the_next_questions_and_the_replay_store_are_those_of_the_checkpoint() -> None:
    (before, cursor), replay = run(replay=Part("trajectories")), Part()
    expected = [cursor.take(3), cursor.get_state()][1]
    (after, restored) = run(replay=replay)
    after.set_state(before.get_state())
    assert (restored.get_state(), replay.held) == (expected, "trajectories")
    assert restored.take(1) == cursor.take(1)


def test_a_run_without_a_replay_store_leaves_one_aside() -> None:
    after, _ = run()
    after.set_state(run(replay=Part("trajectories"))[0].get_state())
    assert "off_policy" not in after.get_state()


def test_a_schedule_goes_on_at_the_steps_of_the_checkpoint() -> None:
    rapo = RAPO.__new__(RAPO)  # which was never set up
    settings = RAPOConfig().training(retrieval_prob=[[0, 0.5], [100, 0.1]]).settings
    rapo._sampling, rapo.eval_env_runner_group = Sampling(settings, QuestionCursor(QUESTIONS, seed=0), None, lambda: None), None
    rapo._weights_lock = RLock()
    rapo.metrics = SimpleNamespace(peek=lambda key, default: 50)
    rapo.set_state({})
    assert rapo._sampling.retrieval_prob == pytest.approx(0.3)

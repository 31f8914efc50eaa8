"""A run that never retrieves keeps the step traces of its checkpoint for whoever goes on from its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.utils.schedules.scheduler import Scheduler

from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.checkpoints.algorithm import SavesCheckpoints
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question


class Rest:
    """RLlib's part of the state, which is not looked at here."""

    def get_state(self, components: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Run(SavesCheckpoints, Rest):
    def __init__(self, upkeep: Any = None) -> None:
        self._buffer_updater, self._idle_buffer, self._ahead, self._off_policy_mixer = upkeep, None, None, None
        self._cursor, self.run_summary = QuestionCursor([Question("q", "?")], seed=0), RunSummary()
        self._retrieval_prob = Scheduler(fixed_value_or_schedule=[[0, 0.5], [100, 0.1]], framework="torch")
        self.metrics = SimpleNamespace(peek=lambda key, default: 50)


class Upkeep:
    def __init__(self, held: Any) -> None:
        self.held = held

    def get_state(self) -> Any:
        return self.held

    def set_state(self, state: Any) -> None:
        self.held = state


def test_the_traces_pass_through_a_run_without_retrieval() -> None:
    donor, idle, later = Run(Upkeep("traces")), Run(), Run(Upkeep(None))
    assert "buffer" not in idle.get_state()["rapo"]
    idle.set_state(donor.get_state())
    assert idle.get_state()["rapo"]["buffer"] == "traces"
    later.set_state(idle.get_state())
    assert later._buffer_updater.held == "traces"


def test_a_schedule_goes_on_at_the_steps_of_the_checkpoint() -> None:
    clone = Run()
    clone.set_state(Run().get_state())
    assert float(clone._retrieval_prob.get_current_value()) == pytest.approx(0.3)

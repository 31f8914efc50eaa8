"""A driver without engines: what a result says is of its iteration, in RLlib's own step; where a checkpoint goes on."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import EVALUATION_ITERATION_TIMER, TIMERS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm import algorithm as module
from rapo_rllib.algorithm.algorithm import RAPO
from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.algorithm.sampling import Sampling
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup
from rapo_rllib.weights.sync import SyncReport

EVALUATED = {"env_runners": {"accuracy": 0.5, "num_episodes": 4}}


class Clock(SimpleNamespace):
    """Time that passes only where the test says so."""

    seconds = 0.0

    def say(self, text: str) -> None: ...

    phase = say


def test_the_engine_beside_the_learner_sleeps_too() -> None:
    """Of a local env runner RLlib looks up a method that is given by its name, and does not call it."""
    heard: list[str] = []
    group: Any = EnvRunnerGroup.__new__(EnvRunnerGroup)
    group._local_env_runner = SimpleNamespace(sleep=lambda: heard.append("sleep"), wake=lambda: heard.append("wake"))
    group._worker_manager = SimpleNamespace(actor_ids=list)
    made: Any = RAPO.__new__(RAPO)
    made.config = SimpleNamespace(settings=SimpleNamespace(engine=SimpleNamespace(sleep=True)))
    made.env_runner_group = group
    made._all_engines("sleep")
    made._all_engines("wake")
    assert heard == ["sleep", "wake"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = RAPO.__new__(RAPO)
    made.config = RAPOConfig().environment("rapo/word_problems").evaluation(evaluation_duration=4)
    made.run_summary, made.progress, made.metrics = RunSummary(), Clock(), MetricsLogger(root=True)
    made.test_questions, made._version = [None] * 4, 1
    made.training_s = made.evaluations_due = 0
    made._warm_start = None

    def rllib_step(self: Any) -> dict[str, Any]:
        self.progress.seconds += self.training_s
        self.metrics.log_value((TIMERS, "training_step"), float(self.training_s), reduce="ema")
        results = {}
        if self.evaluations_due:
            self.metrics.log_value((TIMERS, EVALUATION_ITERATION_TIMER), 1.0, reduce="ema")
            results["evaluation"] = self.evaluate()
        return results | self.metrics.reduce(compile=True)

    def evaluated(self: Any) -> dict[str, Any]:
        self.progress.seconds += 7.0
        return EVALUATED

    monkeypatch.setattr(Algorithm, "step", rllib_step)
    monkeypatch.setattr(module, "evaluate_with_callbacks", evaluated)
    return made


def test_an_evaluation_is_timed_in_its_own_iteration_alone(driver: Any) -> None:
    timed = []
    for due in (False, False, True, False, True):
        driver.evaluations_due = due
        result = driver.step()
        assert ("evaluation" in result) == due
        timed.append(result[TIMERS].get(EVALUATION_ITERATION_TIMER))
    assert timed == [7.0, None, 7.0, None, 7.0]  # the first: of the untrained policy


def test_timers_are_no_averages_of_earlier_iterations(driver: Any) -> None:
    found = []
    for driver.training_s in (100, 2, 3):
        found.append(driver.step()[TIMERS]["training_step"])
    assert found == [100.0, 2.0, 3.0]


def test_staleness_counts_from_the_weights_that_were_trained(driver: Any) -> None:
    """The sync behind an update has one version more: what the very weights that were trained had sampled is 0 updates old."""
    result = SampleResult()
    for version, tokens in ((6, 3), (4, 1)):
        trajectory = Trajectory("q", [1], policy_version=version)
        trajectory.append_policy([5] * tokens, [-1.0] * tokens, [1.0] * tokens)
        result.groups.append(TrajectoryGroup(Question("q", ""), [trajectory]))
    driver._log_sync(SyncReport(7, 1, 0.0, 0.0), result)
    logged = driver.metrics.reduce(compile=True)["sync"]
    assert (logged["staleness_mean"], logged["staleness_max"], logged["weight_version"]) == (0.5, 2.0, 7)


def test_a_schedule_goes_on_at_the_steps_of_the_checkpoint() -> None:
    rapo = RAPO.__new__(RAPO)  # which was never set up
    settings = RAPOConfig().training(retrieval_prob=[[0, 0.5], [100, 0.1]]).settings
    rapo._sampling, rapo.eval_env_runner_group = (
        Sampling(settings, QuestionCursor([Question("q", "?")], seed=0), None, lambda: None),
        None,
    )
    rapo._weights_lock = RLock()
    rapo.metrics = SimpleNamespace(peek=lambda key, default: 50)
    rapo.set_state({})
    assert rapo._sampling.retrieval_prob == pytest.approx(0.3)


def test_without_an_interval_there_is_nothing_to_evaluate(driver: Any) -> None:
    driver.test_questions = []
    with pytest.raises(ValueError, match="evaluation_interval = None: no test questions"):
        driver.evaluate()

"""How long a trial still takes, and what is said of it while it cannot be known."""

from typing import Any

import pytest

from rapo_rllib.cli.train.time_left import TimeLeft, time_left


def result(iteration: int, total_s: float, steps: int | None = None, **more: Any) -> dict[str, Any]:
    found = {"training_iteration": iteration, "time_total_s": total_s, "time_this_iter_s": 10.0, **more}
    return found if steps is None else found | {"env_runners": {"num_env_steps_sampled_lifetime": steps}}


# the first iteration, with its start, took 30 s; the next ones 10 s each
PACED = [result(1, 30.0, 100), result(2, 40.0, 200), result(3, 50.0, 300)]
STEPS = "env_runners/num_env_steps_sampled_lifetime"
REWARD = "env_runners/episode_return_mean"


@pytest.mark.parametrize(
    ("results", "stop", "expected"),
    [
        ([], {"training_iteration": 10}, None),
        (PACED, {}, None),
        (PACED, {REWARD: 450}, None),
        (PACED, {"evaluation/env_runners/accuracy": 0.9}, None),
        (PACED, {"training_iteration": 10}, TimeLeft(70.0)),
        (PACED[:1], {"training_iteration": 10}, TimeLeft(90.0)),
        (PACED, {"time_total_s": 65}, TimeLeft(15.0)),
        (PACED[:1], {"time_total_s": 65}, TimeLeft(35.0)),
        (PACED, {STEPS: 1000}, TimeLeft(70.0)),
        (PACED[:1], {STEPS: 1000}, None),
        (PACED, {"training_iteration": 10, STEPS: 500}, TimeLeft(20.0)),
        (PACED, {"training_iteration": 10, REWARD: 450}, TimeLeft(70.0, at_most=True)),
        (PACED, {"training_iteration": 2}, TimeLeft(0.0)),
        ([result(5, 50.0), result(5, 50.0)], {"training_iteration": 10}, None),
        ([result(1, 30.0, config={"time_budget_s": 100}, rapo={"seconds": 60.0})], {}, TimeLeft(40.0)),
        ([result(1, 30.0, config={"time_budget_s": None}, rapo={"seconds": 60.0})], {}, None),
        ([*PACED, result(4, 60.0, 400, config={"time_budget_s": 70}, rapo={"seconds": 60.0})], {STEPS: 1000}, TimeLeft(10.0)),
    ],
)
def test_time_left(results: list[dict], stop: dict[str, float], expected: TimeLeft | None) -> None:
    found = time_left(results, stop)
    assert found == (expected and TimeLeft(pytest.approx(expected.seconds), expected.at_most))

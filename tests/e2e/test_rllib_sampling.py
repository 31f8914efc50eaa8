"""RLlib's own ways with an env runner, on vLLM: episodes without questions, callbacks; environments and engines that fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from jobs import at, small_config
from letters_env import Letters
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rapo_rllib.errors import EngineError, RolloutError

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def count_starts(*, metrics_logger: Any, **kwargs: Any) -> None:
    metrics_logger.log_value("starts", 1, reduce="sum")


@pytest.fixture(scope="module")
def algorithm(small_model: str) -> Iterator[Any]:
    config = (
        small_config(small_model)
        .env_runners(num_env_runners=0)
        .evaluation(evaluation_interval=1, evaluation_duration=3)
        .callbacks(on_episode_start=count_starts)
    )
    algorithm = config.training(evaluate_before_training=False).build_algo()
    yield algorithm
    algorithm.stop()


def questions_of(episodes: list[SingleAgentEpisode]) -> list[str]:
    return [episode.get_infos(-1)["question_id"] for episode in episodes]


def test_episodes_without_questions_are_of_the_jobs_own(algorithm: Any) -> None:
    runner, cursor = algorithm.env_runner, algorithm._cursor
    before = cursor.position
    episodes = runner.sample(num_episodes=5)
    assert len(episodes) == 8 and cursor.position == before + 2  # whole groups of four
    assert all(type(one) is SingleAgentEpisode and one.is_done for one in episodes)
    assert len({one.get_actions(0) for one in episodes[:4]}) > 1, "sampled"
    assert len(runner.sample(num_timesteps=9)) == 12
    assert len(runner.sample()) == 4 * 4
    assert runner.sample(num_episodes=0) == []
    greedy = runner.sample(num_episodes=4, explore=False)
    assert len({one.get_actions(0) for one in greedy}) == 1
    metrics = algorithm.env_runner.get_metrics()
    assert metrics["num_episodes"].peek() == metrics["starts"].peek() == 8 + 12 + 16 + 4
    assert metrics["episode_return_mean"].peek() > 0
    with pytest.raises(ValueError, match="random_actions = True: an action is a text"):
        runner.sample(num_episodes=1, random_actions=True)
    with pytest.raises(ValueError, match="retrieval_prob is missing"):
        runner.sample(questions=cursor.take(1))


def test_held_out_questions_begin_anew_for_new_weights(algorithm: Any) -> None:
    runner = algorithm.env_runner
    runner.get_metrics()
    with runner.held_out():
        first, second = (questions_of(runner.sample(num_episodes=2)) for _ in range(2))
        again = questions_of(runner.sample(num_episodes=2, force_reset=True))
        algorithm.train()
        after = questions_of(runner.sample(num_episodes=2))
        assert runner.get_metrics()["num_episodes"].peek() == 8
    assert first == again and set(first).isdisjoint(second)
    assert after == [question.id for question in algorithm.test_questions[:2]]
    assert "num_episodes" not in runner.get_metrics()


def test_environments_are_told_how_far_the_training_is(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As schedules of the reward read it. Held-out questions are judged by where schedules end."""

    def step(env: Any, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", -1.0 if env.env_steps is None else float(env.env_steps), True, False, {}

    monkeypatch.setattr(Letters, "env_steps", None, raising=False)
    monkeypatch.setattr(Letters, "step", step)
    before = 16.0 * algorithm.iteration  # episodes of one step
    for sampled in (before, before + 16):
        result = algorithm.train()
        assert at(result, "env_runners/episode_return_mean") == sampled
        assert at(result, "evaluation/env_runners/episode_return_mean") == -1.0
    runner = algorithm.env_runner
    assert {one.get_return() for one in runner.sample(num_episodes=4)} == {before + 16}, "as the training was last"
    assert {one.get_return() for one in runner.sample(num_episodes=4, env_steps=99)} == {99.0}
    with runner.held_out():
        assert {one.get_return() for one in runner.sample(num_episodes=2)} == {-1.0}


def test_a_local_engine_that_breaks_ends_the_training(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, calls = algorithm.env_runner.engine, itertools.count(1)
    step = engine._engine.step

    def faulty_step() -> Any:
        if next(calls) < 3:
            return step()
        assert engine.num_unfinished > 0
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(engine._engine, "step", faulty_step)
    with pytest.raises(EngineError, match=r"vLLM failed in a step with \d+ requests: an illegal memory access"):
        algorithm.train()
    assert engine.num_unfinished == 0
    monkeypatch.undo()
    assert algorithm.train()["env_runners"]["num_episodes"] == 16  # whoever catches the error can go on


def test_an_iteration_or_evaluation_in_which_all_fail_ends_the_run(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what failed most often."""

    def step(env: Any, action: str) -> Any:
        raise RuntimeError("shop 7 is closed")

    monkeypatch.setattr(Letters, "step", step)
    cause = r"env.step failed: RuntimeError\('shop 7 is closed'\)"
    with pytest.raises(RolloutError, match=f"all 16 trajectories of 4 questions failed, 16 of them with: {cause}"):
        algorithm.train()
    with pytest.raises(RolloutError, match=f"all 3 trajectories of 3 questions failed, 3 of them with: {cause}"):
        algorithm.evaluate()

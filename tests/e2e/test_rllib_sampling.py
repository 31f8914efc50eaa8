"""RLlib's own ways with an env runner, on vLLM: episodes without questions, its callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jobs import small_config
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def count_starts(*, metrics_logger: Any, **kwargs: Any) -> None:
    metrics_logger.log_value("starts", 1, reduce="sum")


@pytest.fixture(scope="module")
def algorithm(small_model: str) -> Iterator[Any]:
    config = (
        small_config(small_model)
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

"""RLlib's own ways with an env runner, on vLLM: episodes without questions, its evaluation, its recording, its callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from jobs import at, small_config
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.env_runner.recording import EpisodeRecorder

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


def count_starts(*, metrics_logger: Any, **kwargs: Any) -> None:
    metrics_logger.log_value("starts", 1, reduce="sum")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="module")
def algorithm(small_model: str, recorded: Path) -> Iterator[Any]:
    config = (
        small_config(small_model)
        .evaluation(evaluation_interval=1, evaluation_duration=3, custom_evaluation_function=None)
        .offline_data(output=str(recorded), output_max_rows_per_file=1000, output_write_remaining_data=True)
        .callbacks(on_episode_start=count_starts)
    )
    algorithm = config.training(evaluate_before_training=False).build_algo()
    yield algorithm
    algorithm.stop()


def questions_of(episodes: list[SingleAgentEpisode]) -> list[str]:
    return [episode.get_infos(-1)["question_id"] for episode in episodes]


def read(folder: Path) -> list[SingleAgentEpisode]:
    """As RLlib's offline data reads episodes."""
    import ray

    rows = ray.data.read_parquet(str(folder)).take_all()
    states = [msgpack.unpackb(row["item"]) for row in rows]
    return [SingleAgentEpisode.from_state(state) for state in states]


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
        algorithm.train()  # evaluates, too
        after = questions_of(runner.sample(num_episodes=2))
        assert runner.get_metrics()["num_episodes"].peek() == 8
    assert first == again and set(first).isdisjoint(second)
    assert after == [question.id for question in algorithm.test_questions[3:5]], "behind the three of that evaluation"
    assert "num_episodes" not in runner.get_metrics()


def test_rllibs_own_evaluation(algorithm: Any) -> None:
    result = algorithm.train()
    values = at(result, "evaluation/env_runners")
    assert values["num_episodes"] == values["num_env_steps_sampled"] == values["starts"] == 3
    assert 0 <= values["accuracy"] <= 1
    assert values["episode_return_min"] <= values["episode_return_mean"] <= values["episode_return_max"]
    assert at(result, "env_runners/num_episodes") == at(result, "env_runners/starts") == 16
    assert at(result, "rapo/evaluated_questions") == 3


def test_everything_is_recorded_as_rllib_reads_it(algorithm: Any, recorded: Path) -> None:
    assert list(recorded.iterdir()) == [], "a file is not full yet"
    algorithm.env_runner._recorder.stop()
    episodes = read(recorded / "letters")
    assert len({one.id_ for one in episodes}) == len(episodes) == 40 + 2 + 2 + 2 + 2 + 2 * (16 + 3)
    for one in episodes:
        assert one.get_observations(0).startswith("Write a sentence about the number")
        assert 0 <= one.get_return() <= 1 and one.is_done
        assert one.get_infos(-1)["end"] in ("eos", "length")
        assert one.get_extra_model_outputs("action_logp", 0) < 0


def test_files_are_filled_and_no_row_is_written_twice_or_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RAPOConfig().offline_data(output=str(tmp_path), output_max_rows_per_file=2, output_write_remaining_data=True)
    recorder = EpisodeRecorder(config, 0, "game")
    texts = [{"observations": ["q", ""], "actions": [f"a{index}"], "rewards": [1.0]} for index in range(5)]
    made = [SingleAgentEpisode(**each, len_lookback_buffer=0) for each in texts]
    assert [recorder.record(made[:1]), recorder.record(made[1:])] == [1, 1]
    recorder.output_write_method = "write_nowhere"
    recorder.stop()
    assert "1 recorded rows could not be written to" in caplog.text
    recorder.output_write_method = "write_parquet"
    recorder.stop()
    assert sorted(one.get_actions(0) for one in read(tmp_path / "game")) == [f"a{i}" for i in range(5)]
    assert len(list((tmp_path / "game").iterdir())) == 3


def test_steps_are_rows_where_no_episodes_are_wanted(tmp_path: Path) -> None:
    import ray

    config = RAPOConfig().offline_data(
        output=str(tmp_path), output_write_episodes=False, output_write_method="write_json", output_compress_columns=[]
    )
    one = SingleAgentEpisode(
        observations=["q", "r", ""], actions=["a", "b"], rewards=[0.0, 1.0], terminated=True, len_lookback_buffer=0
    )
    assert EpisodeRecorder(config, 1, "game").record([one]) == 0
    rows = sorted(ray.data.read_json(str(tmp_path / "game")).take_all(), key=lambda row: row["actions"])
    wanted = ("obs", "actions", "rewards", "new_obs", "terminateds")
    assert [[row[name] for name in wanted] for row in rows] == [["q", "a", 0.0, "r", False], ["r", "b", 1.0, "", True]]

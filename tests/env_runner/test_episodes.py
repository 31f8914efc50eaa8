"""Episodes and callbacks of trajectories that a scripted engine writes, in the real loop: what is called, when, and how."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from scripted import END, CalculatorEnv, ScriptedEngine, scripted_loop

from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.env_runner.callbacks import RunnerCallbacks
from rapo_rllib.env_runner.episodes import EpisodeObserver
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.env_runner.own_questions import OwnQuestions, missing_episodes
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.settings import BranchingSettings
from rapo_rllib.types import Question, Step, Trajectory, TrajectoryGroup

SUM = Question("sum", "What is 3 + 5?", "8")
CALL, ANSWER = "<python>3 + 5</python>", "<answer>8</answer>"
NAMES = ("on_environment_created", "on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class PaysPerStep(CalculatorEnv):
    """A quarter for a call, and an info of its own."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + 0.25 * (not terminated), terminated, truncated, {**info, "mine": len(action)}


class Breaks(CalculatorEnv):
    """Fails at its first step."""

    def step(self, action: str) -> Any:
        raise RuntimeError("broken")


def calls_then_answers(text: str) -> str:
    return ANSWER if "</python>" in text else CALL


def make_loop(make_env: Callable[[], Any] = PaysPerStep, **settings: Any) -> RolloutLoop:
    given = {"group_size": 2, "max_response_tokens": 200, **settings}
    return scripted_loop(ScriptedEngine(calls_then_answers), make_env, eos=END, **given)


def runner_of(config: RAPOConfig) -> Any:
    return SimpleNamespace(config=config, metrics=MetricsLogger(root=True), module=None, worker_index=2, num_workers=3)


def rolled_out(
    config: RAPOConfig, make_env: Callable[[], Any] = PaysPerStep, **settings: Any
) -> tuple[list[TrajectoryGroup], list[SingleAgentEpisode], Any]:
    """One group of one question."""
    runner = runner_of(config)
    callbacks = RunnerCallbacks(runner)
    observer = EpisodeObserver(callbacks)
    with closing(make_loop(make_env, **settings)) as loop:
        groups = loop.run([SUM], observer=observer)
    episodes = observer.take(groups)
    callbacks.sample_end(episodes)
    return groups, episodes, runner


def test_an_episode_has_texts_rewards_infos_and_probabilities() -> None:
    ((group,), (episode, _), _) = rolled_out(RAPOConfig())
    assert episode.get_observations() == [SUM.text, "8", ""]
    assert episode.get_actions() == [CALL, ANSWER]
    assert episode.get_rewards() == [0.25, 1.0]
    assert episode.get_return() == group.trajectories[0].reward == 1.25
    assert (episode.is_terminated, episode.is_truncated) == (True, False)
    assert [info.get("mine") for info in episode.get_infos()] == [None, len(CALL), len(ANSWER)]
    last = episode.get_infos(-1)
    assert last["trajectory"] is group.trajectories[0]
    assert (last["question_id"], last["correct"], last["end"]) == ("sum", True, "answer")
    steps = group.trajectories[0].steps
    assert episode.get_extra_model_outputs("action_logp") == [-0.5 * (step.stop - step.start) for step in steps]
    assert episode.get_extra_model_outputs("weights_seq_no") == [0, 0]
    assert episode.to_numpy().get_actions().tolist() == [CALL, ANSWER]


def test_callbacks_are_called_with_what_rllib_passes_while_the_trajectory_grows() -> None:
    seen: list[tuple[str, Any]] = []

    def heard(name: str) -> Callable[..., None]:
        def callback(**kwargs: Any) -> None:
            kwargs["metrics_logger"].log_value(name, 1, reduce="sum")
            one = kwargs.get("episode")
            seen.append((name, (sorted(kwargs), None if one is None else len(one), kwargs["env"].unwrapped.envs[0])))

        return callback

    config = RAPOConfig().callbacks(**{name: heard(name) for name in NAMES})
    *_, runner = rolled_out(config, group_size=1)
    common = ["env", "env_index", "env_runner", "episode", "metrics_logger", "rl_module"]
    created = ["env", "env_context", "env_runner", "metrics_logger"]
    expected = [
        ("on_environment_created", created, None),
        ("on_episode_created", common, 0),
        ("on_episode_start", common, 0),
        ("on_episode_step", common, 1),
        ("on_episode_step", common, 2),
        ("on_episode_end", [*common[:-1], "prev_episode_chunks", "rl_module"], 2),
    ]
    assert [(name, kwargs, length) for name, (kwargs, length, _) in seen] == expected
    assert all(isinstance(env, PaysPerStep) for _, (_, _, env) in seen)
    assert runner.metrics.peek("on_episode_step") == 2


def test_an_environment_can_be_set_up_before_its_reset() -> None:
    class Asks(CalculatorEnv):
        answer = "8"

        def reset(self, **kwargs: Any) -> tuple[str, dict]:
            super().reset(**kwargs)
            self.question = Question("sum", self.question.text, self.answer)
            return self.question.text, {}

    def make_wrong(*, env: Any, **kwargs: Any) -> None:
        env.envs[0].answer = "9"

    for callbacks, correct in (({}, True), ({"on_episode_created": make_wrong}, False)):
        ((group,), *_) = rolled_out(RAPOConfig().callbacks(**callbacks), Asks)
        assert [t.correct for t in group.trajectories] == [correct] * 2


def test_classes_hear_too_and_keep_what_they_note_in_the_episode() -> None:
    class Counts(RLlibCallback):
        def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
            episode.custom_data["calls"] = 0

        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            episode.custom_data["calls"] += "<python>" in episode.get_actions(-1)

        def on_sample_end(self, *, samples: Any, metrics_logger: Any, **kwargs: Any) -> None:
            metrics_logger.log_value("calls", sum(one.custom_data["calls"] for one in samples))

    *_, runner = rolled_out(RAPOConfig().callbacks(Counts), group_size=3)
    assert runner.metrics.peek("calls") == 3


def test_nobody_listens_where_nothing_is_defined() -> None:
    def listens(config: RAPOConfig) -> bool:
        return RunnerCallbacks(SimpleNamespace(config=config)).listens

    class Elsewhere(RLlibCallback):
        def on_train_result(self, **kwargs: Any) -> None: ...

    assert not listens(RAPOConfig())
    assert not listens(RAPOConfig().callbacks(Elsewhere))
    assert listens(RAPOConfig().callbacks(on_sample_end=print))
    assert listens(RAPOConfig().callbacks([Elsewhere, type("Own", (RLlibCallback,), {"on_episode_step": print})]))


@pytest.mark.parametrize("name", [*NAMES, "on_sample_end"])
def test_what_a_callback_raises_comes_out(name: str) -> None:
    def fails(**kwargs: Any) -> None:
        raise KeyError(name)

    with pytest.raises(KeyError, match=name):
        rolled_out(RAPOConfig().callbacks(**{name: fails}))


def test_what_fails_is_truncated_where_it_failed() -> None:
    ended: list[Any] = []
    config = RAPOConfig().callbacks(on_episode_end=lambda *, episode, **kwargs: ended.append(episode))
    ((group,), episodes, _) = rolled_out(config, Breaks)
    assert {id(one) for one in ended} == {id(one) for one in episodes} and len(ended) == 2
    for episode, trajectory in zip(episodes, group.trajectories, strict=True):
        assert trajectory.end == "error"
        assert episode.get_actions() == [CALL]
        assert (episode.is_terminated, episode.is_truncated) == (False, True)
        assert episode.get_infos(-1)["end"] == "error"


def test_what_no_environment_took_up_has_one_empty_step() -> None:
    def make_none() -> Any:
        raise RuntimeError("no environment")

    _, (episode, _), _ = rolled_out(RAPOConfig(), make_none)
    assert (episode.get_observations(), episode.get_actions(), episode.is_truncated) == ([SUM.text, ""], [""], True)


def test_a_budget_ends_an_episode_with_the_judgement_in_its_last_reward() -> None:
    class Judges(PaysPerStep):
        def truncate(self) -> tuple[float, dict[str, Any]]:
            return -1.0, {}

    ((group,), (episode, _), _) = rolled_out(RAPOConfig(), Judges, max_steps=1)
    assert (episode.get_rewards(), group.trajectories[0].reward) == ([0.25 - 1.0], -0.75)
    assert (episode.is_truncated, episode.get_infos(-1)["end"]) == (True, "length")


def test_a_branch_begins_with_the_steps_it_shares() -> None:
    starts: list[int] = []
    config = RAPOConfig().callbacks(on_episode_start=lambda *, episode, **kwargs: starts.append(len(episode)))
    branching = BranchingSettings(initial=1, branches=2, base_prob=1.0, threshold=0.0)
    ((group,), episodes, _) = rolled_out(config, branching=branching)
    assert sorted(starts) == [0, 1]
    assert [one.get_actions() for one in episodes] == [[CALL, ANSWER]] * 2
    assert [one.get_return() for one in episodes] == [t.reward for t in group.trajectories] == [1.25, 1.25]


def test_a_trajectory_of_a_group_that_was_given_up_is_no_episode() -> None:
    ended: list[Any] = []
    config = RAPOConfig().callbacks(on_episode_end=lambda **kwargs: ended.append(kwargs))
    observer, loop = EpisodeObserver(RunnerCallbacks(runner_of(config))), make_loop()
    stream = RolloutStream(loop, observer)
    stream.begin([(0, SUM)], 0.0)
    while len(observer._episodes) < 2:
        stream._run.tick()
    stream.give_up([0])
    while stream._run._coroutines:
        stream._run.tick()
    loop.close()
    assert observer._episodes == {} and ended == []


def test_nor_is_one_that_had_ended_before() -> None:
    observer, loop = EpisodeObserver(RunnerCallbacks(runner_of(RAPOConfig()))), make_loop()
    loop.engine.latency = lambda request: 10**9 if "/1/" in request.request_id else 1
    stream = RolloutStream(loop, observer)
    stream.begin([(0, SUM)], 0.0)
    while not any(made.is_done for made in observer._episodes.values()):
        stream._run.tick()
    stream.give_up([0])
    while stream._run._coroutines:
        stream._run.tick()
    loop.close()
    assert observer._episodes == {}


class Source:
    """Ten training questions, five held-out ones."""

    def questions(self, split: str) -> list[Question]:
        return [Question(f"{split}-{index}", "") for index in range(10 if split == "train" else 5)]


def test_runners_share_the_questions() -> None:
    both = [OwnQuestions(Source(), 0, index, 2) for index in range(2)]
    asked = [question.id for one in both for question in one.take(5)]
    assert sorted(asked) == [f"train-{index}" for index in range(10)]
    assert asked != sorted(asked)
    held_out = [[question.id for question in one.take_held_out(count)] for one, count in zip(both, (3, 2), strict=True)]
    assert held_out == [["test-0", "test-2", "test-4"], ["test-1", "test-3"]]
    both[0].restart()
    assert [question.id for question in both[0].take_held_out(4)] == ["test-0", "test-2", "test-4", "test-1"]


def test_how_many_episodes_are_missing() -> None:
    whole, failed = Trajectory("q", [1]), Trajectory("q", [1])
    whole.steps, failed.error, failed.end = [Step(0, 0)] * 3, "gone", "error"
    sampled = SampleResult([TrajectoryGroup(Question("q", ""), [whole, failed], 0)])
    assert (missing_episodes(sampled, 3, None), missing_episodes(sampled, 0, None)) == (2, 0)
    assert [missing_episodes(sampled, 3, steps) for steps in (0, 3, 4, 7)] == [0, 0, 1, 2]
    assert missing_episodes(SampleResult(), 3, 7) == 4  # two steps each, at first

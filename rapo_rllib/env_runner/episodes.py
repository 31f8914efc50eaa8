"""Trajectories as RLlib episodes, built step by step while the trajectories grow.

Each generated step is one env step: observations and actions are texts; the reward is what the environment paid for the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rapo_rllib.env_runner.callbacks import RunnerCallbacks
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.loop import Observer
from rapo_rllib.types import Step, Trajectory, TrajectoryGroup

_CUT_SHORT = ("length", "tool_limit", "error")  # ends at which an episode is truncated


class EpisodeObserver(Observer):
    """Observer that builds the RLlib episode of every trajectory, and calls the callbacks on episodes.

    The last info of an episode has the trajectory itself, under ``"trajectory"``. A branch (ARPO) is an episode of its own that
    begins with the steps it shares; ``on_episode_step`` is called for these only in the trajectory that wrote them.
    """

    def __init__(self, callbacks: RunnerCallbacks) -> None:
        self._callbacks = callbacks
        self._episodes: dict[int, SingleAgentEpisode] = {}

    def created(self, episode: Episode) -> None:
        """Create an empty episode."""
        self._callbacks.environment_created(episode.env)
        self._tell("on_episode_created", episode, self._episode_of(episode.trajectory))

    def started(self, episode: Episode) -> None:
        """Add the environment's question with the given steps as first observation; in a branch, also add the shared steps."""
        trajectory, made = episode.trajectory, self._episode_of(episode.trajectory)
        made.add_env_reset("\n".join([trajectory.question_text, *trajectory.given]))
        for step in trajectory.steps:
            _add(made, trajectory, step)
        self._tell("on_episode_start", episode, made)

    def stepped(self, episode: Episode, info: Mapping[str, Any], end: str) -> None:
        """Add the last step."""
        made = self._episode_of(episode.trajectory)
        _add(made, episode.trajectory, episode.trajectory.steps[-1], {**info, **_outcome(episode, end)}, end)
        self._tell("on_episode_step", episode, made)

    def given_up(self, episode: Episode) -> None:
        """Drop the episode; ``on_episode_end`` is not called for it."""
        self._episodes.pop(id(episode.trajectory), None)

    def ended(self, episode: Episode) -> None:
        """Add a missing end: the step at which the trajectory failed, or an empty step with the rest of the reward."""
        trajectory, made = episode.trajectory, self._episode_of(episode.trajectory)
        if not made.is_done:
            if not made.is_reset:
                made.add_env_reset(trajectory.question_text or episode.question.text)
            begun = trajectory.steps[len(made) :] or [Step(0, 0, reward=trajectory.reward - made.get_return())]
            _add(made, trajectory, begun[0], _outcome(episode, trajectory.end), trajectory.end)
        self._tell("on_episode_end", episode, made)

    def take(self, groups: Sequence[TrajectoryGroup]) -> list[SingleAgentEpisode]:
        """Return the episodes of all trajectories, in the order of the groups, and forget them."""
        return [self._episodes.pop(id(trajectory)) for group in groups for trajectory in group.trajectories]

    def _episode_of(self, trajectory: Trajectory) -> SingleAgentEpisode:
        return self._episodes.setdefault(id(trajectory), SingleAgentEpisode())

    def _tell(self, name: str, episode: Episode, made: SingleAgentEpisode) -> None:
        self._callbacks.episode(name, made, episode.env)


def _add(
    episode: SingleAgentEpisode, trajectory: Trajectory, step: Step, info: dict[str, Any] | None = None, end: str = ""
) -> None:
    episode.add_env_step(
        observation=step.observation,
        action=step.text,
        reward=step.reward,
        infos=info,
        terminated=bool(end) and end not in _CUT_SHORT,
        truncated=end in _CUT_SHORT,
        extra_model_outputs={
            Columns.ACTION_LOGP: sum(trajectory.logprobs[step.start : step.stop]),
            WEIGHTS_SEQ_NO: trajectory.token_versions[step.start] if step.stop > step.start else trajectory.policy_version,
        },
    )


def _outcome(episode: Episode, end: str) -> dict[str, Any]:
    """Build the info of the last step; it is empty if there is no ``end``."""
    if not end:
        return {}
    trajectory, question = episode.trajectory, episode.question
    return {
        "trajectory": trajectory,
        "question": question,
        "question_id": question.id,
        "correct": trajectory.correct,
        "predicted": trajectory.predicted,
        "end": end,
    }

"""The env runner's side of a streamed rollout: orders come in, complete groups go out, the rest stays in the engine.

An actor does one thing at a time: new weights are loaded, and held-out questions are asked, between two orders. Trajectories
under way go on with the next order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.buffer.layered import BufferView
from rapo_rllib.env_runner.episodes import EpisodeObserver
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.rollout.unaided import add_unaided
from rapo_rllib.types import Question, TrajectoryGroup


@dataclass(frozen=True)
class Conditions:
    """The conditions of groups that begin now: values of schedules, and the buffer as the driver has it."""

    retrieval_prob: float
    env_steps: int | None = None  # generated steps that the training has sampled before
    buffer_view: BufferView | None = None


@dataclass(frozen=True)
class Order:
    """Questions to begin and to give up, and how long to go on."""

    conditions: Conditions
    questions: list[tuple[int, Question]] = field(default_factory=list)  # with their places in the order of the training
    given_up: list[int] = field(default_factory=list)  # places
    least_version: int = 0  # of the weights: an engine with older weights does nothing
    seconds: float = 0.25


@dataclass(frozen=True)
class Answer:
    """The answer to an order."""

    engine: str  # its unique name; a restarted engine has another
    version: int  # of its weights
    complete: list[tuple[int, TrajectoryGroup]] = field(default_factory=list)  # with their places
    under_way: list[int] = field(default_factory=list)  # places
    num_requests: int = 0  # that the engine has not finished
    stats: RolloutStats = field(default_factory=RolloutStats)  # since the previous answer
    logged: list[Any] = field(default_factory=list)  # by callbacks, as reduced RLlib metrics


_PAUSE_S = 0.02  # pause of an order while the engine's weights are incomplete


class RunnerStream:
    """Groups under way on one env runner.

    Args:
        env_runner: the ``RAPOEnvRunner``.
        observer: builds episodes of the groups for callbacks; None: there are no callbacks.
    """

    def __init__(self, env_runner: Any, observer: EpisodeObserver | None) -> None:
        self._env_runner, self._observer = env_runner, observer
        self._stream = RolloutStream(env_runner.loop, observer)
        self._waiting: list[tuple[int, Question]] = []  # questions that wait for complete weights

    def work(self, order: Order) -> Answer:
        """Execute an order: give up, begin and continue groups; return the complete groups.

        Raises:
            EngineError: the engine broke.
        """
        runner, stream = self._env_runner, self._stream
        stream.give_up(order.given_up)
        self._waiting = [(place, question) for place, question in self._waiting if place not in order.given_up]
        self._waiting += order.questions
        complete: list[tuple[int, TrajectoryGroup]] = []
        self._set_view(order.conditions.buffer_view)  # in any case: a view is sent only once
        if not runner.engine.weights.whole:
            time.sleep(_PAUSE_S)
        elif runner.policy_version < order.least_version:  # the engine was restarted, and lacks the weights of this training
            self._waiting = []
        else:
            waiting, self._waiting = self._waiting, []
            stream.begin(waiting, order.conditions.retrieval_prob, order.conditions.env_steps)
            complete = stream.advance(order.seconds)
        groups = [group for _, group in complete]
        add_unaided(groups, runner.settings.objective.shown_steps, runner.loop.chat)
        if self._observer is not None and groups:
            runner.hand_on(self._observer.take(groups))
        logged = [] if self._observer is None else [runner.metrics.reduce()]
        under_way = [*stream.under_way, *(place for place, _ in self._waiting)]
        stats, num_requests = stream.stats.take(), runner.engine.num_unfinished
        name, version = runner.engine_name(), runner.policy_version
        return Answer(name, version, complete, under_way, num_requests, stats, logged)

    def close(self) -> None:
        """Drop all groups under way."""
        self._stream.close()

    def _set_view(self, view: BufferView | None) -> None:
        """Set the view on the search thread, so that the buffer does not change during a search."""
        if view is not None and self._env_runner.loop.retriever is not None:
            self._env_runner.loop.search_thread.submit(self._env_runner.set_buffer_view, view).result()

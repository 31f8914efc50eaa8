"""Messages between driver and env runner in a streamed rollout, about four a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.buffer.layered import BufferView
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import Question, TrajectoryGroup


@dataclass(frozen=True)
class Conditions:
    """The conditions of groups that begin now: values of schedules, and the buffer as the driver has it."""

    retrieval_prob: float
    env_steps: int | None = None  # generated steps that the training has sampled before
    buffer_view: BufferView | None = None


@dataclass(frozen=True)
class Order:
    """Begin these, give those up, and go on for a while."""

    conditions: Conditions
    questions: list[tuple[int, Question]] = field(default_factory=list)  # with their places in the order of the training
    given_up: list[int] = field(default_factory=list)  # places
    least_version: int = 0  # of the weights: an engine with older ones does nothing
    seconds: float = 0.25


@dataclass(frozen=True)
class Answer:
    """The answer to an order."""

    engine: str  # unique name; after a restart another
    version: int  # of its weights
    complete: list[tuple[int, TrajectoryGroup]] = field(default_factory=list)  # with their places
    under_way: list[int] = field(default_factory=list)  # places
    num_requests: int = 0  # that the engine is at, or is to do
    stats: RolloutStats = field(default_factory=RolloutStats)  # since the answer before
    logged: list[Any] = field(default_factory=list)  # by callbacks; reduced metrics of RLlib's

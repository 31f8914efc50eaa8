"""StepAgent's two forms of credit, between a rollout and its update: each step beside the nearest one in the buffer.

groups --queries--> Step-Trace Buffer --nearest step of each--> implicit: PreferredStep      inverse: rewards of steps

The buffer is that of the off-policy agents: what the policy added to it during training is no expert's. Where it does not
answer, the steps of an iteration have no comparison; that is said, and counted. Each question is asked once.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.objective.discriminator import log_odds, moved
from rapo_rllib.protocol.expert_tokens import split_observation
from rapo_rllib.rollout.compared_steps import NotPreferred, preferred_step, step_queries
from rapo_rllib.types import HistoryQuery, PreferredStep, Question, RetrievedTrace, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from rapo_rllib.protocol.chat import ChatProtocol
    from rapo_rllib.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compared:
    """A step of the policy and the nearest one in the buffer."""

    trajectory: Trajectory
    index: int  # of the policy's own step
    query: HistoryQuery
    nearest: RetrievedTrace
    question: Question

    @property
    def own_question(self) -> bool:
        """Whether the buffer's step was cut from a trajectory of the very question."""
        return self.nearest.trace.question == self.trajectory.question_text


class StepComparison:
    """Compares the steps of each iteration, in the form that a job's settings say; remembers the discriminator.

    Args:
        settings: of the job; ``step_comparison`` is one of the two forms.
        buffer: the off-policy agents', of steps alone; :meth:`close` closes it.
        chat: encodes steps of the buffer as the policy would have written them; ``inverse`` needs the protocol alone.
    """

    def __init__(self, settings: Settings, buffer: StepTraceBuffer, chat: ChatProtocol | None) -> None:
        self._settings, self._objective, self._buffer, self._chat = settings, settings.objective, buffer, chat
        self._without = frozenset(source for source, weight in buffer.source_weights().items() if weight == 0)
        self._discriminator: torch.Tensor | None = None  # [D]; None: nothing was compared yet
        self._silent = False

    def take(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Compare the rollouts of a batch, in place; returns metrics of it."""
        asked = [
            (trajectory, index, query, group.question)
            for group in groups
            for trajectory in group.counted
            for index, query in enumerate(self._queries(trajectory, group.question))
        ]
        values = {"steps": float(len(asked)), "unanswered": 0.0}
        found = self._nearest([query for _, _, query, _ in asked])
        if found is None:
            values["unanswered"], found = values["steps"], [None] * len(asked)
        places = zip(asked, found, strict=True)
        compared = [Compared(*place[:3], nearest, place[3]) for place, nearest in places if nearest is not None]
        values |= {
            "not_found": values["steps"] - values["unanswered"] - len(compared),
            "similarity": _mean([one.nearest.similarity for one in compared]),
            "own_question": _mean([float(one.own_question) for one in compared]),
        }
        prefers = self._objective.step_comparison == "implicit"
        return values | (self._prefer(compared) if prefers else self._reward(groups, compared))

    def _queries(self, trajectory: Trajectory, question: Question) -> list[HistoryQuery]:
        remembers = self._settings.rollout.retrieval_query == "history"
        return step_queries(trajectory, question, self._settings.protocol, remembers)

    def _nearest(self, queries: Sequence[HistoryQuery]) -> list[RetrievedTrace | None] | None:
        """The nearest step of each; None: the buffer does not answer."""
        distinct = list(dict.fromkeys(queries))
        try:
            hits = self._buffer.retrieve(distinct, 1, self._without)
        except RetrievalError as error:
            if not self._silent:
                logger.warning("the Step-Trace Buffer does not answer; steps are not compared until it does: %s", error)
            self._silent = True
            return None
        self._silent = False
        nearest = {query: found[0] if found else None for query, found in zip(distinct, hits, strict=True)}
        return [nearest[query] for query in queries]

    def _prefer(self, compared: Sequence[Compared]) -> dict[str, float]:
        assert self._chat is not None
        limit, count = self._settings.rollout.max_response_tokens, Counter[NotPreferred]()
        for one in compared:
            text = one.nearest.trace.text
            found = preferred_step(one.trajectory, one.index, text, one.question, self._chat, limit)
            if isinstance(found, PreferredStep):
                one.trajectory.preferred = [*one.trajectory.preferred, found]
            else:
                count[found] += 1
        return {reason.value: float(count[reason]) for reason in NotPreferred}

    def _reward(self, groups: Sequence[TrajectoryGroup], compared: Sequence[Compared]) -> dict[str, float]:
        """Train the discriminator on the pairs of this iteration, then reward steps by it; its accuracy is that of before."""
        for group in groups:
            for trajectory in group.counted:
                trajectory.comparison_rewards = [0.0] * len(trajectory.steps)
        if not compared:
            return {"same": 0.0, "reward": 0.0, "discriminator_accuracy": 0.0}
        objective, differences = self._objective, self._differences(compared)
        different = differences.abs().amax(1) > 0
        before = differences.new_zeros(differences.shape[1]) if self._discriminator is None else self._discriminator
        told = log_odds(before, differences, objective.step_reward_bound)[different] < 0
        self._discriminator = moved(before, differences, objective.discriminator_inertia)
        rewards = log_odds(self._discriminator, differences, objective.step_reward_bound)
        for one, reward in zip(compared, rewards.tolist(), strict=True):
            one.trajectory.comparison_rewards[one.index] = objective.step_comparison_weight * reward
        return {
            "same": float((~different).sum()),
            "reward": float(rewards.mean()),
            "discriminator_accuracy": _mean(told.double().tolist()),
        }

    def _differences(self, compared: Sequence[Compared]) -> torch.Tensor:
        """Of the vectors of both steps, each behind question and history, float64 ``[N, D]``."""
        theirs = [split_observation(one.nearest.trace.text.strip(), self._settings.protocol)[0] for one in compared]
        own = [one.trajectory.steps[one.index].as_text.strip() for one in compared]
        behind = [(one.query.question, f"{one.query.history}\n") for one in compared]
        pairs = [(q, h + text) for texts in (theirs, own) for (q, h), text in zip(behind, texts, strict=True)]
        vectors = torch.from_numpy(self._buffer.embedder.encode(pairs)).double()
        return vectors[: len(compared)] - vectors[len(compared) :]

    def close(self) -> None:
        """Let go of the buffer."""
        self._buffer.close()

    def get_state(self) -> torch.Tensor | None:
        """The discriminator, for checkpoints; None: there is none yet."""
        return self._discriminator

    def set_state(self, state: torch.Tensor | None) -> None:
        """Go on with it; one of another width belongs to another embedder, and is left."""
        fits = state is not None and len(state) == self._buffer.embedder.dim
        if state is not None and not fits:
            logger.warning("the discriminator of the checkpoint is of another embedder; a new one begins")
        self._discriminator = state if fits else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(len(values), 1)

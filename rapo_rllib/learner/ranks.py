"""The learners of one LearnerGroup acting together: they sum numbers, and an error on one rank is raised on all.

RLlib waits for all learners of an update. If one raises while the others wait in a collective operation, training hangs. So
every stage between two collectives runs inside :meth:`Ranks.raise_on_all_ranks`, which tells all ranks whether any of them
failed. Passes through sharded weights are full of collectives: ``lockstep.py`` brings them to an end on all ranks first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import exceptions
from ray.rllib.core import COMPONENT_LEARNER
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.annotations import override
from ray.rllib.utils.typing import StateDict

from rapo_rllib.errors import LearnerError, OutOfStepError

logger = logging.getLogger(__name__)

_LOOK_S = 1.0  # between two polls of the learners
_DEATH_S = 60.0  # for Ray to find out that a node is gone, after a learner failed, perhaps because of that


class Ranks:
    """All learners of the group; a single local learner is a group of one, without communication."""

    def __init__(self, device: torch.device, distributed: bool) -> None:
        self._device = device
        self._distributed = distributed

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sum over the ranks."""
        return self._reduce(values, dist.ReduceOp.SUM) if self._distributed else list(values)

    def max(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over the ranks."""
        return self._reduce(values, dist.ReduceOp.MAX) if self._distributed else list(values)

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, operation)
        return tensor.tolist()

    @contextmanager
    def raise_on_all_ranks(self, stage: str) -> Iterator[None]:
        """Run a stage, and raise on all ranks if it raises on any. Collectives in it must come to an end on all ranks first.

        Raises:
            LearnerError: on all ranks, naming each failure and its rank. A single local learner raises its own error unchanged.
            OutOfStepError: on one rank alone, at once, since no collective would end any more; the driver ends the group.
        """
        error: Exception | None = None
        try:
            yield
        except OutOfStepError:
            raise
        except Exception as caught:
            if not self._distributed:
                raise
            error = caught
        if self.max([error is not None])[0]:
            raise LearnerError(self._report(stage, error)) from error

    def _report(self, stage: str, error: Exception | None) -> str:
        """Describe all failures and their ranks, in the same words on every rank."""
        errors: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(errors, None if error is None else f"{type(error).__name__}: {error}")
        failures = [f"learner {rank}: {text}" for rank, text in enumerate(errors) if text is not None]
        return f"{stage} failed on {len(failures)} of {len(errors)} learners; " + "; ".join(failures)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum gradients over the ranks, in place; a rank without a gradient contributes zero."""
        if not self._distributed:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def copy_from_first(self, parameters: Iterable[torch.Tensor]) -> None:
        """Overwrite parameters with those of rank 0, so that all ranks start alike."""
        if self._distributed:
            for parameter in parameters:
                dist.broadcast(parameter.detach(), src=0)


def _has_died(answer: Any) -> bool:
    """Check whether the asked process has ended. A ``RayTaskError`` has its cause's type, too: it may tell another's end."""
    ends = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.OutOfMemoryError, exceptions.NodeDiedError)
    no_ends = (exceptions.ActorUnavailableError, exceptions.RayTaskError)
    return not answer.ok and isinstance(answer.get(), ends) and not isinstance(answer.get(), no_ends)


class _Failure(str):
    """Message of an error that was caught on a learner."""


def _has_failed(answer: Any) -> bool:
    return not answer.ok or isinstance(answer.get(), _Failure)


class RAPOLearnerGroup(LearnerGroup):
    """RLlib's learner group for learners that act together: dead learners are noticed, and all are asked for state at once.

    The state is the first learner's answer, gathered from the shards of all.
    """

    _one_call = Lock()  # learners could take two calls in different order, and wait for each other

    @override(LearnerGroup)
    def update(self, **kwargs: Any) -> list[StateDict]:
        """Update all learners. If one dies, do not wait for the others, which wait for it until torch's deadline, half an hour.

        Raises:
            LearnerError: the process of a learner ended, or one has failed before.
        """
        ask = partial(super().update, **kwargs)
        if self.is_local:
            found: list[StateDict] = ask()
            return found
        return list(self._asked(lambda _: ask(async_update=True), "an update").values())

    def on_all(self, function: Callable[[Any], Any], during: str, error_type: type[Exception] = LearnerError) -> list[Any]:
        """Call a function on each learner; returns the results in the order of the learners.

        Raises:
            error_type: the function raised on a learner, which lives on (RLlib would end it without saying why).
            LearnerError: the process of a learner ended meanwhile, or one has failed before.
        """

        def answer(learner: Any) -> Any:
            try:
                return function(learner)
            except Exception as error:
                logger.exception("%s failed", during)
                return _Failure(f"{type(error).__name__}: {error}")

        if self.is_local:
            found = {0: answer(self._learner)}
        else:
            found = self._asked(lambda workers: workers.foreach_actor_async(answer), during)
        for index, given in found.items():
            if isinstance(given, _Failure):
                raise error_type(f"{during} failed on learner {index}: {given}")
        return list(found.values())

    def _asked(self, ask: Callable[[Any], Any], during: str) -> dict[int, Any]:
        workers: Any = self._worker_manager
        with self._one_call:
            if workers.num_healthy_actors() < len(self):
                raise LearnerError("a learner has failed before, and RLlib asks it no more: go on from a checkpoint")
            self._answers(workers, "a call that was interrupted")
            ask(workers)
            return self._answers(workers, during)

    def _answers(self, workers: Any, during: str) -> dict[int, Any]:
        """Collect the learners' answers by learner index. Once a learner has failed, wait no longer: others may wait for it."""
        answers: list[Any] = []
        while workers.num_outstanding_async_reqs() and not any(map(_has_failed, answers)):
            answers += workers.fetch_ready_async_reqs(timeout_seconds=_LOOK_S).result_or_errors
        if any(map(_has_failed, answers)) and not any(map(_has_died, answers)):
            answers += workers.fetch_ready_async_reqs(timeout_seconds=_DEATH_S).result_or_errors
        for answer in filter(_has_died, answers):
            told = " ".join(str(answer.get()).split())
            raise LearnerError(f"learner {answer.actor_id} of {len(self)} died in {during}: {told}") from answer.get()
        answers.sort(key=lambda answer: answer.actor_id)
        return {answer.actor_id: given for answer, given in zip(answers, self._get_results(answers), strict=True)}

    @override(LearnerGroup)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> StateDict:
        """Get the state from all learners; RLlib asks only the first, which with shards would wait for the others for ever."""
        if not self.is_local and self._check_component(COMPONENT_LEARNER, components, not_components):
            wanted, unwanted = (self._get_subcomponents(COMPONENT_LEARNER, names) for names in (components, not_components))
            states = self.on_all(lambda learner: learner.state_from_all(wanted, unwanted, **kwargs), "a copy of its state")
            return {COMPONENT_LEARNER: states[0]}
        state: StateDict = super().get_state(components, not_components=not_components, **kwargs)
        return state

    @override(LearnerGroup)
    def set_state(self, state: StateDict) -> None:
        """Set the state on all learners; RLlib's method would silently end a learner that cannot take it."""
        if self.is_local or COMPONENT_LEARNER not in state:
            super().set_state(state)
            return
        given = ray.put(state[COMPONENT_LEARNER])
        self.on_all(lambda learner: learner.set_state(ray.get(given)), "taking a state")

"""Which errors of Ray are the end of a learner, and how it is told, by a stand-in for Ray's actors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.actor_manager import CallResult, RemoteCallResults, ResultOrError

from rapo_rllib.errors import LearnerError
from rapo_rllib.learner.ranks import RAPOLearnerGroup


class Workers:
    """RLlib's manager of actors, as far as a group calls it: learner 0 answers, learner 1 with ``error``."""

    def __init__(self, error: Exception) -> None:
        self._answers = [CallResult(1, ResultOrError(error=error), ""), CallResult(0, ResultOrError(result="done"), "")]
        self.waiting: list[CallResult] = []

    def ask(self, *_: Any, **__: Any) -> None:
        self.waiting = list(self._answers)

    def num_outstanding_async_reqs(self) -> int:
        return len(self.waiting)

    def num_healthy_actors(self) -> int:
        return 2

    def fetch_ready_async_reqs(self, timeout_seconds: float) -> RemoteCallResults:
        found, self.waiting = RemoteCallResults(), self.waiting[1:]
        found.result_or_errors = self._answers[1 - len(self.waiting) :][:1]
        return found


def group_of(error: Exception, monkeypatch: pytest.MonkeyPatch) -> RAPOLearnerGroup:
    made, workers = RAPOLearnerGroup.__new__(RAPOLearnerGroup), Workers(error)
    made.config, made._workers, made._worker_manager = SimpleNamespace(num_learners=2), [None, None], workers
    made._is_shut_down = True
    monkeypatch.setattr(LearnerGroup, "update", workers.ask)
    return made


def raised(cause: Exception) -> exceptions.RayTaskError:
    return exceptions.RayTaskError("update", "Traceback: here", cause, "learner", 1, "host")


ENDS = [
    exceptions.RayActorError(),
    exceptions.ActorDiedError(),
    exceptions.WorkerCrashedError(),
    exceptions.OutOfMemoryError("killed, as the node was full"),
    exceptions.NodeDiedError("the node is gone"),
]
NO_ENDS = [
    exceptions.ActorUnavailableError("no answer", None),
    exceptions.ObjectLostError("00", None, "here"),
    exceptions.OwnerDiedError("00", None, "here"),
    exceptions.GetTimeoutError("too long"),
    exceptions.OutOfDiskError("full"),
    raised(OSError("a disk is gone")),
    raised(exceptions.ActorDiedError()),  # of an actor that the learner asked
]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_a_process_that_is_gone_is_a_death(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LearnerError, match="^learner 1 of 2 died in an update: ") as caught:
        group_of(error, monkeypatch).update()
    assert " ".join(str(error).split()) in str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize("error", NO_ENDS, ids=lambda error: f"{type(error).__name__} {getattr(error, 'cause', '')}")
def test_any_other_error_is_raised_as_it_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(error)) as caught:
        group_of(error, monkeypatch).update()
    assert not isinstance(caught.value, LearnerError) and str(caught.value) == str(error)

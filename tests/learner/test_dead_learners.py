"""Which errors of Ray are the end of a learner, and how it is told, by a stand-in for Ray's actors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.actor_manager import CallResult, RemoteCallResults, ResultOrError

from rapo_rllib.checkpoints.algorithm import AlgorithmCheckpoints, export_policy, save_training_state
from rapo_rllib.errors import LearnerError
from rapo_rllib.learner import ranks
from rapo_rllib.learner.ranks import RAPOLearnerGroup
from rapo_rllib.settings import ModelSettings
from rapo_rllib.weights.canary import Canary
from rapo_rllib.weights.sync import WeightSync


class Workers:
    """RLlib's manager of actors, as far as a group calls it: learner 1 answers with ``error``, then learner 0 is ready."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.waiting: list[CallResult] = []
        self.healthy = 2
        self.timeouts: list[float] = []

    def foreach_actor_async(self, function: Any = str, **_: Any) -> None:
        second = ResultOrError(result=function("second")) if self._error is None else ResultOrError(error=self._error)
        self.waiting += [CallResult(1, second, ""), CallResult(0, ResultOrError(result=function("first")), "")]

    def num_outstanding_async_reqs(self) -> int:
        return len(self.waiting)

    def num_healthy_actors(self) -> int:
        return self.healthy

    def fetch_ready_async_reqs(self, timeout_seconds: float) -> RemoteCallResults:
        self.timeouts.append(timeout_seconds)
        found = RemoteCallResults()
        found.result_or_errors, self.waiting = self.waiting[:1], self.waiting[1:]
        self.healthy -= sum(not answer.ok for answer in found.result_or_errors)
        return found


def group_of(error: Exception | None) -> RAPOLearnerGroup:
    made, workers = RAPOLearnerGroup.__new__(RAPOLearnerGroup), Workers(error)
    made.config, made._workers, made._worker_manager = SimpleNamespace(num_learners=2), [None, None], workers
    made._is_shut_down = True
    return made


def checkpoint(group: RAPOLearnerGroup, folder: Path) -> None:
    AlgorithmCheckpoints(group, nullcontext(), with_policy=False).on_all_learners(folder, save_training_state, writes=True)


CALLS: dict[str, Callable[[RAPOLearnerGroup, Path], Any]] = {
    "an update": lambda group, folder: group.update(),
    "a copy of its state": lambda group, folder: group.get_state(components="learner/rl_module"),
    "a sync of weights": lambda group, folder: WeightSync(Canary([[1, 2]], exact=True)).run(group, None),
    "writing a checkpoint": checkpoint,
    "an export of the policy": lambda group, folder: export_policy(ModelSettings(), group, folder, merged=True),
}


@pytest.fixture(autouse=True)
def _update_by_rllib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnerGroup, "update", lambda group, **_: group._worker_manager.foreach_actor_async())


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
def test_a_process_that_is_gone_is_a_death(error: Exception) -> None:
    with pytest.raises(LearnerError, match=r"^learner 1 of 2 died in an update: ") as caught:
        group_of(error).update()
    assert " ".join(str(error).split()) in str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize("error", NO_ENDS, ids=lambda error: f"{type(error).__name__} {getattr(error, 'cause', '')}")
def test_any_other_error_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        group_of(error).update()
    assert not isinstance(caught.value, LearnerError) and str(caught.value) == str(error)


@pytest.mark.parametrize("during", CALLS)
def test_a_death_is_told_in_the_same_words_whatever_was_asked(during: str, tmp_path: Path) -> None:
    group = group_of(exceptions.ActorDiedError())
    with pytest.raises(LearnerError, match=rf"^learner 1 of 2 died in {during}: The actor died unexpectedly"):
        CALLS[during](group, tmp_path)
    with pytest.raises(LearnerError, match="a learner has failed before"):
        CALLS[during](group, tmp_path)
    assert len(group._worker_manager.waiting) == 1  # those that wait for the dead one are not waited for


@pytest.mark.parametrize("during", CALLS)
def test_an_error_of_a_call_is_none_of_a_learner(during: str, tmp_path: Path) -> None:
    with pytest.raises(exceptions.ObjectLostError):
        CALLS[during](group_of(exceptions.ObjectLostError("00", None, "here")), tmp_path)


def test_answers_are_in_the_order_of_learners_and_none_is_that_of_a_call_before() -> None:
    group = group_of(None)
    group._worker_manager.foreach_actor_async()  # by a call that was interrupted
    assert group.on_all(str.upper, "a test") == ["FIRST", "SECOND"]
    assert not group._worker_manager.waiting


def test_a_learner_that_raises_is_told_by_its_number_before_those_that_wait_for_it() -> None:
    group = group_of(None)
    with pytest.raises(LearnerError, match=r"^a test failed on learner 1: ValueError: invalid literal for int"):
        group.on_all(lambda learner: int(learner) if learner == "second" else 0, "a test")
    assert group._worker_manager.timeouts == [ranks._LOOK_S, ranks._DEATH_S]  # the second: those that fail together


@pytest.mark.parametrize("error", [LearnerError(), ValueError("")])
def test_an_error_without_words_is_one(error: Exception) -> None:
    def fail(_: Any) -> None:
        raise error

    with pytest.raises(LearnerError, match=f"failed on learner 0: {type(error).__name__}: "):
        group_of(None).on_all(fail, "a test")


@pytest.mark.parametrize("is_local", [True, False])
def test_what_a_learner_raises_is_told_and_it_lives_on(is_local: bool, tmp_path: Path) -> None:
    def export(folder: str, merged: bool) -> None:
        raise OSError("read-only")

    learner = SimpleNamespace(weights=SimpleNamespace(export=export))
    group = group_of(None)
    if is_local:
        group._learner, group.config.num_learners = learner, 0
    group._worker_manager.foreach_actor_async = lambda function: Workers.foreach_actor_async(
        group._worker_manager, lambda _: function(learner)
    )
    for _ in range(2):
        with pytest.raises(LearnerError, match=r"^an export of the policy failed on learner 0: OSError: read-only$"):
            export_policy(ModelSettings(), group, tmp_path, merged=True)

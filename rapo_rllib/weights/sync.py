"""Sync of new weights to every engine, confirmed before the next sample.

    learner --publish--> engines --load--> version, scores --> compared here

RLlib's own sync is fire-and-forget and may be dropped silently. Here the call waits, and every engine reports which version it
holds, and how it scores a few fixed token sequences (``canary.py``). Stale or partial weights are this field's most expensive
silent bug. An engine that cannot load is restarted. An engine whose process ended is left out while others go on: its node may
be gone. RLlib brings it back later, with the weights of that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.weights.canary import Canary, CanaryResult, Scores
from rapo_rllib.weights.publisher import Publication

logger = logging.getLogger(__name__)

VLLM_TRANSFERS = ("nccl", "ipc")  # vLLM's own, from GPU to GPU

_MAX_LOADS = 3  # of one version by one engine, which is restarted in between


@dataclass(frozen=True)
class Confirmation:
    """The state of an engine after a sync: the version of its weights, and its logprobs of the canary sequences."""

    version: int
    scores: Scores
    seconds: float  # of loading
    engine: str  # e.g. env runner 2 on host-7 (5c1e90ab); another name after a restart


@dataclass(frozen=True)
class SyncReport:
    """A confirmed sync: the version that every engine holds, and how far engines and learner differ on the canary, nats."""

    version: int
    num_engines: int
    mean_difference: float
    max_difference: float
    num_bytes: int = 0  # of one copy of the weights
    publish_s: float = 0.0  # until the weights were where engines find them
    load_s: float = 0.0  # of the slowest engine
    num_restarts: int = 0  # of engines that could not load at first
    learner_moved: float = 0.0  # since the sync before, nats; over engines, the largest move
    engine_missed: float = 0.0  # part of that move that the worst engine missed, nats


Loaded = tuple[Publication, float, list[Confirmation], int]  # seconds of publishing, every engine's answer, restarts


class WeightSync:
    """Sync of the learner's weights to engines; the canary remembers what each engine confirmed.

    Args:
        canary: raises if an engine's scores are wrong, which ends the training.
        transfer: ``weight_transfer``: ``nccl`` or ``ipc``, vLLM's own; anything else is Ray's object store.
        restarts: whether Ray restarts env runners that ended (``restart_failed_env_runners``).
        timeout_s: how long to wait for engines that load, and for those that are restarted.
    """

    def __init__(self, canary: Canary, transfer: str = "auto", restarts: bool = True, timeout_s: float = 600.0) -> None:
        self.canary, self._transfer = canary, transfer
        self._restarts, self._timeout_s = restarts, timeout_s

    def run(self, learner_group: Any, env_runner_group: Any) -> SyncReport:
        """Give the current weights to all engines of ``env_runner_group`` and wait until each has confirmed them.

        All engines in service confirm, including those that are restarted meanwhile. An engine that was out of service before
        does not count, even if it comes back meanwhile: it gets weights before it samples again (``RAPO.restore_env_runners``).

        Raises:
            WeightSyncError: an engine cannot load the weights, there is no engine, or one holds other weights than the learner.
        """
        expected = _first_learner(learner_group, lambda learner: learner.score(self.canary.sequences))
        load = self._load_locally if not _has_remote_runners(env_runner_group) else self._load_on_all
        publication, publish_s, answers, num_restarts = load(learner_group, env_runner_group)
        results = [verify_engine(publication, answer, expected, self.canary) for answer in answers]
        return SyncReport(
            publication.version,
            len(answers),
            mean_difference=max(result.mean for result in results),
            max_difference=max(result.largest for result in results),
            num_bytes=publication.num_bytes,
            publish_s=publish_s,
            load_s=max(answer.seconds for answer in answers),
            num_restarts=num_restarts,
            learner_moved=max(result.learner_moved for result in results),
            engine_missed=max(result.engine_missed for result in results),
        )

    def _load_locally(self, learner_group: Any, group: Any) -> Loaded:
        publication, publish_s = _published(learner_group, group, self._transfer, self._timeout_s)
        answer = group.local_env_runner.load_policy(publication, self.canary.sequences)
        if isinstance(answer, str):
            raise WeightSyncError(f"weight version {publication.version}: {answer}")
        return publication, publish_s, [answer], 0

    def _load_on_all(self, learner_group: Any, group: Any) -> Loaded:
        """Publish and load until every engine in service has confirmed; engines that fail but live are restarted."""
        in_service = any_engine_back(group, self._restarts, self._timeout_s)
        tries, num_restarts = (_MAX_LOADS if self._restarts else 1), 0
        for left in reversed(range(tries)):
            try:
                publication, publish_s = _published(learner_group, group, self._transfer, self._timeout_s)
            except WeightSyncError as error:
                if self._transfer not in VLLM_TRANSFERS or not left:
                    raise
                # engines share a transfer: those that live may wait for one that does not
                logger.warning("%s; all engines are restarted", error)
                failures = dict.fromkeys(in_service, str(error))
            else:
                answers, failures = _answers(group, in_service, publication, self.canary.sequences, self._timeout_s)
                if answers and self._restarts:
                    lives = group._worker_manager.is_actor_healthy
                    failures = {index: error for index, error in failures.items() if lives(index)}
            if not failures:
                for index in set(group.healthy_worker_ids()) - set(in_service):  # came back meanwhile, without the weights
                    group._worker_manager.set_actor_state(index, healthy=False)  # so that RLlib finds it again, with them
                return publication, publish_s, answers, num_restarts
            if left:
                num_restarts += len(failures)
                all_engines_back(group, failures, self._timeout_s)
        tried = f", tried {tries} times with a restart in between" if self._restarts else ""
        told = "; ".join(f"env runner {index}: {error}" for index, error in sorted(failures.items()))
        raise WeightSyncError(
            f"weight version {publication.version} did not reach {len(failures)} of {len(in_service)} engines{tried}. {told}. "
            "See the log of that env runner"
        )


def verify_engine(publication: Publication, answer: Confirmation, expected: Scores, canary: Canary) -> CanaryResult:
    """Compare an engine's confirmation with what was published, and its scores with the learner's.

    Raises:
        WeightSyncError: naming the engine, what differs and by how much, and what to do.
    """
    version = publication.version
    if answer.version != version:
        raise WeightSyncError(f"{answer.engine} holds weight version {answer.version} after version {version} was sent to it")
    try:
        return canary.check(answer.engine, expected, answer.scores)
    except WeightSyncError as error:
        raise WeightSyncError(
            f"weight version {version} on {answer.engine}: {error}, or its kernels compute otherwise than the learner: look at "
            "weight_transfer, engine.extra, quantization, the versions of vLLM and transformers, and with model.lora at the "
            "files under model.name_or_path, which must be the same on every machine"
        ) from error


def sync_metrics(report: SyncReport) -> dict[str, float]:
    """Name the metrics of a sync."""
    return {
        "weight_version": report.version,
        "engines": report.num_engines,
        "engine_restarts": report.num_restarts,
        "canary_mean": report.mean_difference,
        "canary_max": report.max_difference,
        "learner_moved": report.learner_moved,
        "engine_missed": report.engine_missed,
        "mebibytes": report.num_bytes / 2**20,
        "publish_s": report.publish_s,
        "load_s": report.load_s,
    }


def _has_remote_runners(env_runner_group: Any) -> bool:
    return env_runner_group.local_env_runner is None or bool(env_runner_group.num_remote_env_runners())


def _published(learner_group: Any, env_runner_group: Any, transfer: str, timeout_s: float) -> tuple[Publication, float]:
    """Let the learners publish; returns the seconds, too. vLLM's transfer leaves out engines that ended or do not answer."""
    start = time.perf_counter()
    publication: Publication
    if learner_group.is_local and not _has_remote_runners(env_runner_group):
        publication = learner_group._learner.weights.publish_local()
    elif transfer in VLLM_TRANSFERS:
        manager = env_runner_group._worker_manager  # RLlib has no other way to the actors
        names = manager.foreach_actor("engine_name", timeout_seconds=timeout_s).ignore_errors()
        handles = {result.get(): manager.actors()[result.actor_id] for result in names}
        publication = _first_learner(learner_group, lambda learner: learner.weights.send(transfer, handles))
    else:
        publication = _first_learner(learner_group, lambda learner: learner.weights.publish())
    return publication, time.perf_counter() - start


def _answers(
    group: Any, in_service: Sequence[int], publication: Publication, sequences: Sequence[Sequence[int]], timeout_s: float
) -> tuple[list[Confirmation], dict[int, str]]:
    """Let the engines load; returns the confirmations, and for each env runner without one, by number, the reason."""
    arguments = {"publication": publication, "sequences": sequences}
    manager = group._worker_manager  # RLlib's group does not tell which ones answered
    results = manager.foreach_actor("load_policy", kwargs=arguments, remote_actor_ids=in_service, timeout_seconds=timeout_s)
    answers: list[Confirmation] = []
    failures = dict.fromkeys(in_service, f"its process ended, or did not answer within {timeout_s:.0f} s")
    for result in results.ignore_errors():
        answer = result.get()
        if isinstance(answer, str):
            failures[result.actor_id] = answer
        else:
            answers.append(answer)
            del failures[result.actor_id]
    return answers, failures


def _first_learner(learner_group: Any, function: Callable[[Any], Any]) -> Any:
    """Call ``function`` on all learners, as its collectives need; returns the first learner's result.

    Raises:
        WeightSyncError: ``function`` raised on a learner.
        LearnerError: a learner died.
    """
    return learner_group.on_all(function, "a sync of weights", WeightSyncError)[0]


_PAUSE_S = 0.5
_SILENCE_S = 20.0  # an engine that is silent for so long waits in a transfer that broke off


def any_engine_back(env_runner_group: Any, restarts: bool, timeout_s: float) -> list[int]:
    """Return the numbers of the env runners in service; if there is none, wait for one.

    Raises:
        WeightSyncError: no env runner came back in time, or Ray restarts none.
    """
    deadline = time.monotonic() + timeout_s
    while not env_runner_group.healthy_worker_ids():
        if not restarts or time.monotonic() > deadline:
            waited = f"within {timeout_s:.0f} s" if restarts else "and restart_failed_env_runners is false"
            raise WeightSyncError(f"there is no engine to sync: all env runners died {waited}; see their logs")
        env_runner_group.probe_unhealthy_env_runners()
        time.sleep(_PAUSE_S)
    return list(env_runner_group.healthy_worker_ids())


def all_engines_back(env_runner_group: Any, indices: Iterable[int], timeout_s: float) -> None:
    """End these env runners, if they still live, and wait until Ray has restarted all of them.

    Raises:
        WeightSyncError: an env runner did not come back in time.
    """
    manager = env_runner_group._worker_manager  # RLlib has no other way to the actors
    waiting = set(indices)
    answers = list(_asked(manager, waiting))
    before = {result.actor_id: result.get() for result in answers if result.ok}
    silent = waiting - {result.actor_id for result in answers}
    for index in sorted(before.keys() | silent):
        ray.kill(manager.actors()[index], no_restart=False)
        manager.set_actor_state(index, healthy=False)
    deadline = time.monotonic() + timeout_s
    while waiting:
        if time.monotonic() > deadline:
            raise WeightSyncError(f"env runner(s) {sorted(waiting)} did not come back within {timeout_s:.0f} s; see their logs")
        time.sleep(_PAUSE_S)
        env_runner_group.probe_unhealthy_env_runners()
        # a process that is being ended may answer once more, by its old name
        names = _asked(manager, waiting).ignore_errors()
        waiting -= {result.actor_id for result in names if result.get() != before.get(result.actor_id)}


def _asked(manager: Any, indices: Iterable[int]) -> Any:
    """Ask those of these env runners that are in service for their names, which change with each start."""
    return manager.foreach_actor("engine_name", remote_actor_ids=sorted(indices), timeout_seconds=_SILENCE_S)

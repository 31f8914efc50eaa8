"""What a sync asks of every engine, and what it does about one that cannot load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError
from ray.rllib.utils.actor_manager import RemoteCallResults, ResultOrError

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.learner.ranks import RAPOLearnerGroup
from rapo_rllib.weights import sync as weight_sync
from rapo_rllib.weights.canary import Canary
from rapo_rllib.weights.publisher import Publication
from rapo_rllib.weights.sync import Confirmation, SyncReport, WeightSync, sync_metrics, verify_engine

SCORES = [[-1.0, -2.0], [-0.5, -3.0]]
SENT = Publication(3)
HELD = Confirmation(3, SCORES, 0.1, "env runner 2 on host (u2)")


def canary() -> Canary:
    made = Canary([[1, 2, 3], [4, 5, 6]], exact=True)
    made.tolerance = 0.1
    return made


def test_an_engine_that_holds_what_was_sent_passes() -> None:
    result = verify_engine(SENT, HELD, SCORES, canary())
    assert (result.mean, result.largest) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (replace(HELD, version=2), r"env runner 2 on host \(u2\) holds weight version 2 after version 3 was sent"),
        (replace(HELD, version=9), "holds weight version 9 after version 3"),
        (replace(HELD, scores=[[-1.5, -2.0], [-0.5, -3.0]]), r"version 3 on env runner 2 .* 0\.1250 nats .* stale or partial"),
    ],
)
def test_anything_else_is_an_error_that_names_the_engine(answer: Confirmation, message: str) -> None:
    with pytest.raises(WeightSyncError, match=message):
        verify_engine(SENT, answer, SCORES, canary())


class Runners:
    """RLlib's env runner group and its manager, as far as a sync calls them, with answers that a test decides.

    ``fault(index, starts)`` is what env runner ``index`` does after so many starts: None loads, a text fails, "dies" ends it,
    and from "hangs" on it gives no answer.
    """

    local_env_runner = None

    def __init__(self, count: int, fault: Callable[[int, int], str | None]) -> None:
        self.starts = dict.fromkeys(range(1, count + 1), 1)
        self.healthy = set(self.starts)
        self.fault, self.probed, self.hung = fault, 0, set[tuple[int, int]]()
        self._worker_manager = self

    def num_remote_env_runners(self) -> int:
        return len(self.starts)

    def healthy_worker_ids(self) -> list[int]:
        return sorted(self.healthy)

    def is_actor_healthy(self, index: int) -> bool:
        return index in self.healthy

    def probe_unhealthy_env_runners(self) -> list[int]:
        self.probed += 1
        for index in set(self.starts) - self.healthy:
            self.starts[index] += 1
        self.healthy = set(self.starts)
        return []

    def actors(self) -> dict[int, int]:
        return {index: index for index in self.starts}

    def set_actor_state(self, index: int, healthy: bool) -> None:
        self.healthy.discard(index)

    def confirmation(self, held: Confirmation, index: int) -> Confirmation:
        return held

    def name(self, index: int) -> str:
        return f"env runner {index} ({self.starts[index]})"

    def foreach_actor(
        self, method: str, kwargs: Any = None, remote_actor_ids: Any = None, timeout_seconds: float | None = None
    ) -> RemoteCallResults:
        results = RemoteCallResults()
        asked = self.healthy if remote_actor_ids is None else self.healthy & set(remote_actor_ids)
        for index in sorted(asked):
            fault = self.fault(index, self.starts[index]) if method == "load_policy" else None
            if fault == "hangs":
                self.hung.add((index, self.starts[index]))
            if (index, self.starts[index]) in self.hung:
                assert timeout_seconds is not None, "this waits for ever"
                continue
            if fault == "dies":
                self.healthy.discard(index)
                results.add_result(index, ResultOrError(error=RayActorError()), "")
                continue
            answer: Any = self.name(index)
            if method == "load_policy":
                sent = kwargs["publication"]
                held = self.confirmation(Confirmation(sent.version, SCORES, 0.1, answer), index)
                answer = held if fault is None else f"{answer} could not load it: {fault}"
            results.add_result(index, ResultOrError(result=answer), "")
        return results


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SyncReport]:
    """``sync(runners)`` with a learner that publishes version 3."""
    monkeypatch.setattr(weight_sync, "_PAUSE_S", 0.0)
    monkeypatch.setattr(weight_sync.ray, "kill", lambda actor, no_restart: None)
    monkeypatch.setattr(weight_sync, "_first_learner", lambda group, function: function(group))
    weights = SimpleNamespace(publish=lambda: SENT, send=lambda transfer, handles: SENT)
    learner = SimpleNamespace(is_local=False, score=lambda sequences: SCORES, weights=weights)
    return lambda runners, by=None, **options: WeightSync(by or canary(), **options).run(learner, runners)


def test_all_engines_confirm(sync: Any) -> None:
    report = sync(Runners(3, lambda index, starts: None))
    assert (report.num_engines, report.num_restarts, report.version) == (3, 0, 3)


@pytest.mark.parametrize("fault", ["RuntimeError: no memory", "hangs"])
def test_an_engine_that_fails_is_restarted_and_confirms(sync: Any, fault: str) -> None:
    runners = Runners(3, lambda index, starts: fault if index == 2 and starts == 1 else None)
    report = sync(runners)
    assert (report.num_engines, report.num_restarts) == (3, 1)
    assert runners.starts == {1: 1, 2: 2, 3: 1}
    assert sync_metrics(report)["engine_restarts"] == 1 and sync_metrics(report)["engines"] == 3


def test_an_engine_whose_process_ends_is_not_waited_for_unless_it_is_the_last(sync: Any) -> None:
    """Its node may be gone; RLlib brings it back between two samples."""
    runners = Runners(3, lambda index, starts: "dies" if index == 2 else None)
    report = sync(runners)
    assert (report.num_engines, report.num_restarts) == (2, 0)
    assert runners.healthy == {1, 3} and set(runners.starts.values()) == {1}
    alone = Runners(1, lambda index, starts: "dies" if starts == 1 else None)
    report = sync(alone)
    assert (report.num_engines, report.num_restarts) == (1, 1) and alone.starts == {1: 2}


def test_an_engine_that_does_not_say_its_name_is_restarted_and_confirms(sync: Any) -> None:
    """vLLM's own transfer asks for names before anything is sent."""
    runners = Runners(3, lambda index, starts: None)
    runners.hung.add((2, 1))
    report = sync(runners, transfer="nccl")
    assert (report.num_engines, report.num_restarts) == (3, 1) and runners.starts == {1: 1, 2: 2, 3: 1}


UNLOADED = ("OSError: no file", "not load it: OSError: no file")


@pytest.mark.parametrize(
    ("count", "fault", "told"),
    [
        *((1, *UNLOADED), (1, "dies", "process ended"), (1, "hangs", "within 600 s")),
        *((2, *UNLOADED), (2, "hangs", "within 600 s")),
    ],
)
def test_an_engine_that_goes_on_failing_ends_the_training(sync: Any, count: int, fault: str, told: str) -> None:
    """Also if it is the only one: a sync of no engine is none."""
    runners = Runners(count, lambda index, starts: fault if index == 1 else None)
    message = rf"did not reach 1 of {count} engines, tried 3 times with a restart in between\. env runner 1: .*{told}"
    with pytest.raises(WeightSyncError, match=message):
        sync(runners)


def test_without_restarts_the_first_failure_ends_it(sync: Any) -> None:
    runners = Runners(2, lambda index, starts: "dies" if index == 1 else None)
    with pytest.raises(WeightSyncError, match=r"did not reach 1 of 2 engines\. env runner 1: its process ended"):
        sync(runners, restarts=False)
    runners = Runners(1, lambda index, starts: None)
    runners.healthy.clear()
    with pytest.raises(WeightSyncError, match="there is no engine to sync"):
        sync(runners, restarts=False)


def test_engines_that_are_all_away_are_waited_for(sync: Any) -> None:
    runners = Runners(2, lambda index, starts: None)
    runners.healthy.clear()
    assert sync(runners).num_engines == 2 and runners.probed == 1
    runners.healthy.clear()
    runners.probe_unhealthy_env_runners = lambda: []
    with pytest.raises(WeightSyncError, match="there is no engine to sync: all env runners died within 0 s"):
        sync(runners, timeout_s=0.0)


def test_one_that_was_away_before_does_not_count(sync: Any) -> None:
    runners = Runners(3, lambda index, starts: None)
    runners.healthy.discard(3)
    assert sync(runners).num_engines == 2


def test_one_that_comes_back_during_a_sync_stays_out_of_service_until_it_gets_weights(sync: Any) -> None:
    runners = Runners(3, lambda index, starts: "OSError" if index == 2 and starts == 1 else None)
    runners.healthy.discard(3)
    assert sync(runners).num_engines == 2  # the wait for the second's restart has also found the third
    assert runners.probed and runners.healthy == {1, 2}


def test_a_local_engine_that_fails_ends_the_training(sync: Any) -> None:
    failure = "the driver's engine (u) could not load it: ValueError: half a file"
    local = SimpleNamespace(load_policy=lambda publication, sequences: failure)
    group = SimpleNamespace(local_env_runner=local, num_remote_env_runners=lambda: 0)
    with pytest.raises(WeightSyncError, match=r"weight version 3: the driver's engine \(u\) could not load it: ValueErr"):
        sync(group)


def test_a_learner_that_cannot_publish_is_named_and_lives_on() -> None:
    def publish() -> Publication:
        raise OSError("no memory left")

    learner = SimpleNamespace(score=lambda sequences: SCORES, weights=SimpleNamespace(publish=publish))

    on_all = partial(RAPOLearnerGroup.on_all, SimpleNamespace(is_local=True, _learner=learner))
    group = SimpleNamespace(is_local=False, on_all=on_all)
    with pytest.raises(WeightSyncError, match="a sync of weights failed on learner 0: OSError: no memory left"):
        WeightSync(canary()).run(group, Runners(1, lambda index, starts: None))


class UnlikeRunners(Runners):
    """The second differs more from the learner, and loads longer."""

    missed = 0.0

    def confirmation(self, held: Confirmation, index: int) -> Confirmation:
        scores = [[score + 1e-3 * index - self.missed for score in row] for row in held.scores]
        scores[0][0] += 1e-3 * index
        return replace(held, scores=scores, seconds=float(index))


def test_a_report_is_that_of_the_worst_engine(sync: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runners, one = UnlikeRunners(2, lambda index, starts: None), canary()
    report = sync(runners, one)
    assert (report.mean_difference, report.max_difference) == (pytest.approx(2.5e-3), pytest.approx(4e-3))
    assert (report.load_s, report.num_engines) == (2.0, 2)
    metrics = sync_metrics(report)
    assert metrics["canary_mean"] == report.mean_difference and metrics["canary_max"] == report.max_difference
    assert metrics["load_s"] == 2.0
    monkeypatch.setitem(globals(), "SCORES", [[score + 0.5 for score in row] for row in SCORES])
    runners.missed, runners.starts[2] = 5e-4, 2  # a restarted engine has nothing that it moved from
    report = sync(runners, one)
    assert (report.learner_moved, report.engine_missed) == (pytest.approx(0.5), pytest.approx(5e-4))

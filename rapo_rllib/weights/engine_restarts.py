"""Restarts of env runners with a broken engine: they are ended, and awaited until Ray has started them again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray

from rapo_rllib.errors import WeightSyncError

_PAUSE_S = 0.5
_SILENCE_S = 20.0  # an engine that says nothing for so long waits in a transfer that broke off


def any_engine_back(env_runner_group: Any, restarts: bool, timeout_s: float) -> list[int]:
    """Return the numbers of the env runners in service; if there is none, wait for one.

    Raises:
        WeightSyncError: none came back, or none will.
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
    """End these env runners, if they still live, and wait until Ray has started all of them anew.

    Raises:
        WeightSyncError: one did not come back in time.
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
        # a process that is being ended may answer once more
        names = _asked(manager, waiting).ignore_errors()
        waiting -= {result.actor_id for result in names if result.get() != before.get(result.actor_id)}


def _asked(manager: Any, indices: Iterable[int]) -> Any:
    """Ask the env runners in service among these for their names: another name after each start."""
    return manager.foreach_actor("engine_name", remote_actor_ids=sorted(indices), timeout_seconds=_SILENCE_S)

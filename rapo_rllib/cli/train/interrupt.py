"""When a trial ends: stop criteria, the time budget, and Ctrl-C, which lets the running iteration finish and saves it."""

from __future__ import annotations

import difflib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
from ray.tune import Callback
from ray.tune.stopper import Stopper

from rapo_rllib.monitoring.metrics_flat import flattened

_STOPPING = "Stopping after the running iteration, with a checkpoint. Press Ctrl-C again to abort at once."


class Interruption:
    """Whether somebody pressed Ctrl-C."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take over SIGINT from Tune, which would end trials without a checkpoint. Ray blocks it in its own processes.

        Where it is ignored it stays ignored: a shell starts background jobs of a script so, and Ctrl-C is not for them.
        """
        os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
        before = signal.getsignal(signal.SIGINT)
        if before == signal.SIG_IGN:
            yield
            return
        signal.signal(signal.SIGINT, self._on_sigint)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        os.write(2, f"\n{_STOPPING}\n".encode())  # print() may be running at this moment, and cannot be entered twice


class TrialStopper(Stopper):
    """Stops a trial when any criterion is reached (nested results as ``a/b``), after the time budget, or on Ctrl-C.

    ``end`` is when the budget is spent, on the clock of ``time.monotonic``; ``interrupted`` has the ids of the trials that had
    reached no criterion when the budget or Ctrl-C ended them. Tune writes the stopper into its notes, from which ``--resume``
    reads them. ``check`` is called with every result first, and may raise.
    """

    def __init__(
        self,
        criteria: dict[str, float],
        time_budget_s: float | None,
        interruption: Interruption,
        check: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.criteria = criteria
        self.end = None if time_budget_s is None else time.monotonic() + time_budget_s
        self.interrupted: set[str] = set()
        self._interruption = interruption
        self._check = check
        self._trials: Iterable[Any] = ()
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Trials do not belong into Tune's notes."""
        return {**self.__dict__, "_trials": ()}

    def watch(self, trials: Iterable[Any]) -> None:
        """Learn which trials there are."""
        self._trials = trials

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Asked after every result."""
        if self._check is not None:
            self._check(result)
        for key in self.criteria:
            if result_value(result, key) is None:
                self._warn_missing(key, result)
        if reaches(result, self.criteria):
            return True
        if self._no_more():
            self.interrupted.add(trial_id)
            return True
        return False

    def stop_all(self) -> bool:
        """After the time budget or Ctrl-C, once no trial is running: those that wait, or are set up, have nothing to save."""
        if not self._no_more() or any(trial.status == "RUNNING" for trial in self._trials):
            return False
        self.interrupted |= {trial.trial_id for trial in self._trials if trial.status not in ("TERMINATED", "ERROR")}
        return True

    def _no_more(self) -> bool:
        return self._interruption.requested or (self.end is not None and time.monotonic() >= self.end)

    def _warn_missing(self, key: str, result: dict[str, Any]) -> None:
        if key in self._warned:
            return
        self._warned.add(key)
        near = difflib.get_close_matches(key, flattened(result), n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        typer.secho(f"Warning: stop criterion {key} is not among the results yet{hint}", err=True, fg="yellow")


class TrialWatch(Callback):
    """Tells the stopper about trials; on Ctrl-C every result is saved, whatever ``checkpoint_config`` says."""

    def __init__(self, stopper: TrialStopper, interruption: Interruption) -> None:
        self._stopper = stopper
        self._interruption = interruption

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune looks for events."""
        self._stopper.watch(trials)

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """An iteration ended; Tune reads ``should_checkpoint`` from the result after this."""
        if self._interruption.requested:
            result["should_checkpoint"] = True


def reaches(result: Mapping[str, Any], criteria: Mapping[str, float]) -> bool:
    """Whether any number of a result is as large as its criterion; one that is missing is not."""
    values = ((result_value(result, key), limit) for key, limit in criteria.items())
    return any(value is not None and value >= limit for value, limit in values)


def result_value(result: Mapping[str, Any], key: str) -> float | None:
    """The number called ``key`` (``a/b``: nested); None where there is none (yet)."""
    value: Any = result
    if key in result:
        value = result[key]
    else:
        for part in key.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
    return None if value is None or isinstance(value, dict) else float(value)

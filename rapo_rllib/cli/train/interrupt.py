"""Ends of a trial: stop criteria, and Ctrl-C, which lets the running iteration finish and saves it."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
from ray.tune import Callback
from ray.tune.stopper import Stopper

from rapo_rllib.monitoring.metrics_flat import flattened

_EVALUATION = "evaluation/"
_STOPPING = "Stopping after the running iteration, with a checkpoint. Press Ctrl-C again to abort at once."


class Interruption:
    """State of Ctrl-C: whether it was pressed."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT in place of Tune, which would end trials without a checkpoint. Ray blocks it in its own processes.

        If it is ignored, it stays ignored: a shell starts a script's background jobs like that, and Ctrl-C is not for them.
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


class TrialStopper(Stopper, Callback):
    """Stopper of a trial, when any criterion is reached (nested results as ``a/b``) or on Ctrl-C.

    It is also a callback of Tune's: it knows all trials, and after Ctrl-C it has every result saved, whatever
    ``checkpoint_config`` says.

    ``interrupted`` has the ids of the trials that had reached no criterion when Ctrl-C ended them. Tune writes the stopper into
    its notes, from which ``--resume`` reads these ids. ``problem`` says that the scheduler's metric is not among the results;
    Tune's own check of that is off, as it would end a run whose metric only comes with evaluations.
    """

    def __init__(self, criteria: dict[str, float], interruption: Interruption, metric: str | None = None) -> None:
        self.criteria = criteria
        self.interrupted: set[str] = set()
        self.problem = ""
        self._interruption = interruption
        self._metric = metric
        self._trials: Iterable[Any] = ()
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Leave trials out of Tune's notes."""
        return {**self.__dict__, "_trials": ()}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Remember the trials of the experiment."""
        self._trials = trials

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Request a checkpoint after Ctrl-C; Tune reads ``should_checkpoint`` from the result after this call."""
        if self._interruption.requested:
            result["should_checkpoint"] = True

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Decide whether a trial ends, before the scheduler sees its result. Raises ``ValueError`` if that lacks the metric."""
        names = flattened(result)
        for key in self.criteria.keys() - names.keys() - self._warned:
            self._warned.add(key)
            said = f"Warning: stop criterion {key} is not among the results yet{_meant(key, names)}"
            typer.secho(said, err=True, fg="yellow")
        evaluated = any(name.startswith(_EVALUATION) for name in names)
        if self._metric and self._metric not in names and (evaluated or not self._metric.startswith(_EVALUATION)):
            self.problem = f"scheduler.metric = {self._metric!r} is not among the results{_meant(self._metric, names)}"
            raise ValueError(self.problem)
        if reaches(result, self.criteria):
            return True
        if self._interruption.requested:
            self.interrupted.add(trial_id)
            return True
        return False

    def stop_all(self) -> bool:
        """Stop the run after Ctrl-C, once no trial is running: trials that wait or are being set up have nothing to save."""
        if not self._interruption.requested or any(trial.status == "RUNNING" for trial in self._trials):
            return False
        self.interrupted |= {trial.trial_id for trial in self._trials if trial.status not in ("TERMINATED", "ERROR")}
        return True


def _meant(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(sorted(names)[:20])}, ..."


def reaches(result: Mapping[str, Any], criteria: Mapping[str, float]) -> bool:
    """Check whether any number of a result is at least its criterion; a missing number is not."""
    values = flattened(result)
    return any(values.get(key) is not None and values[key] >= limit for key, limit in criteria.items())

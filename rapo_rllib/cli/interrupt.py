"""Ctrl-C: the first ends every trial after its running iteration, with its checkpoint; the second aborts."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

import typer
from ray.tune.stopper import Stopper


class Interruption:
    """Whether somebody pressed Ctrl-C."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Take over SIGINT from Tune, which would end trials without a checkpoint. Ray blocks it in its own processes."""
        os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        typer.echo("\nStopping after the running iteration, with a checkpoint. Press Ctrl-C again to abort at once.", err=True)


class StopAtCriteria(Stopper):
    """Stops a trial when any criterion is reached (``{"training_iteration": 10}``, nested keys as ``a/b``), or on Ctrl-C."""

    def __init__(self, criteria: dict[str, Any], interruption: Interruption) -> None:
        self._criteria = criteria
        self._interruption = interruption

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Asked after every result."""
        reached = any(_value(result, key) >= limit for key, limit in self._criteria.items())
        return reached or self._interruption.requested

    def stop_all(self) -> bool:
        """Never: each trial ends by itself, so that it writes its checkpoint."""
        return False


def _value(result: dict[str, Any], key: str) -> float:
    """The value of a result; a criterion whose result is not there (yet) is not reached."""
    value: Any = result
    if key in result:
        value = result[key]
    else:
        for part in key.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
    return float("-inf") if value is None else float(value)

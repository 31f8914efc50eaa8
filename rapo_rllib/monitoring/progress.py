"""Tell what is happening now: lines that Ray forwards from the trial to the terminal, and the phase for a live display.

A trial's process --say_phase--> Ray's key-value store (one key per trial, overwritten) --phase_of--> the terminal's process

The store is part of every Ray and reaches all machines of a cluster; there is nothing to start, to close, or to fall behind.
"""

from __future__ import annotations

import logging
import sys
import time

from ray.experimental import internal_kv

_NAMESPACE = "rapo_rllib_phase"


class Progress:
    """Says which phase began, with the time since the start.

    Args:
        name: the trial's id.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = time.monotonic()
        self._logger = logging.getLogger(f"rapo_rllib.monitoring.progress.{name}")
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        if not self._logger.handlers:
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(logging.Formatter("%(message)s"))
            self._logger.addHandler(handler)

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """One line."""
        minutes, seconds = divmod(int(self.seconds), 60)
        self._logger.info("%02d:%02d %s", minutes, seconds, text)

    def phase(self, name: str) -> None:
        """Say what begins now, in one word or two; a live display shows it."""
        say_phase(self._name, name)


def say_phase(trial_id: str, phase: str) -> None:
    """Note the phase of a trial; without Ray nobody is there to read it."""
    if internal_kv._internal_kv_initialized():
        internal_kv._internal_kv_put(trial_id, phase, namespace=_NAMESPACE)


def phase_of(trial_id: str) -> str | None:
    """Return what a trial said last; None if it has said nothing, as those of RLlib's own algorithms."""
    if not internal_kv._internal_kv_initialized():
        return None
    value = internal_kv._internal_kv_get(trial_id, namespace=_NAMESPACE)
    return None if value is None else value.decode()

"""Tell what is happening now, in lines that Ray forwards from the trial to the terminal."""

from __future__ import annotations

import logging
import sys
import time


class Progress:
    """Printer of progress lines, each with the time since the start.

    Args:
        name: the trial's id.
    """

    def __init__(self, name: str) -> None:
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
        """Print one line of progress."""
        minutes, seconds = divmod(int(self.seconds), 60)
        self._logger.info("%02d:%02d %s", minutes, seconds, text)

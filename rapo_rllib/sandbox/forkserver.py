"""The forkserver: a zygote with the packages loaded forks a locked child for each call or session.

This side starts the zygote at the first call, and a new one if it is lost. What runs on the other side is in ``inside/``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox.base import LostProcess, SandboxLimits, SandboxResult
from rapo_rllib.sandbox.files import visible_files
from rapo_rllib.sandbox.forked_process import ForkedProcess
from rapo_rllib.sandbox.machine import layers_in_force
from rapo_rllib.sandbox.zygote_process import ZygoteProcess

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ForkserverSandbox:
    """Forks a locked child for each call or session; thread-safe.

    Args:
        layers: what children are locked into, as ``machine.layers_in_force`` found it.
        preload: packages that are loaded once, in the zygote.

    Raises:
        ValueError: one of ``preload`` is not installed, or brings what code must not read.
    """

    def __init__(self, layers: Sequence[str], preload: Sequence[str] = ()) -> None:
        self.layers = tuple(layers)
        self._preload, self._files = tuple(preload), visible_files(preload)
        self._running: list[ZygoteProcess] = []  # one or none
        self._lock = threading.Lock()
        weakref.finalize(self, _stop, self._running)
        _sandboxes.add(self)

    def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run code in a fresh process; once more if the zygote is lost under it."""

        def run_in(zygote: ZygoteProcess) -> SandboxResult:
            with contextlib.closing(ForkedProcess(zygote, limits, one_call=True)) as process:
                return process.run(code)

        return self._twice(run_in)

    def open(self, limits: SandboxLimits) -> ForkedProcess:
        """A fresh process for several calls."""
        return self._twice(lambda zygote: ForkedProcess(zygote, limits, one_call=False))

    def _twice(self, work: Callable[[ZygoteProcess], T]) -> T:
        for _ in range(2):
            zygote = self._zygote()
            try:
                return work(zygote)
            except LostProcess as lost:
                self._drop_if_gone(zygote)  # else it is that process alone: the others stay
                error = lost
        raise ToolError(f"python tool: its sandbox ended twice under a call: {error}") from error

    def close(self) -> None:
        """End the zygote and all its children; a later call starts another."""
        with self._lock:
            _stop(self._running)

    def _zygote(self) -> ZygoteProcess:
        with self._lock:
            if not self._running:
                self._running.append(ZygoteProcess(self.layers, self._preload, self._files))
            return self._running[0]

    def _drop_if_gone(self, zygote: ZygoteProcess) -> None:
        with self._lock:
            if zygote in self._running and zygote.is_gone():
                self._running.clear()
                logger.warning("python tool: its sandbox is started again: %s", zygote.stop() or "it was killed")

    def forget(self) -> None:
        """In a forked process: the zygote is the parent's."""
        self._lock = threading.Lock()
        self._running.clear()


def _stop(running: list[ZygoteProcess]) -> None:
    while running:
        running.pop().stop()


_sandboxes: weakref.WeakSet[ForkserverSandbox] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[tuple[str, bool, tuple[str, ...]], ForkserverSandbox] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_sandbox(namespaces: str, allow_weak: bool, preload: Sequence[str]) -> ForkserverSandbox:
    """The one sandbox of this process with these options of the python tool, for as long as someone uses it.

    Nothing is started yet, but the machine is looked at.

    Raises:
        ValueError: this machine does not give a layer that is required, or a package is missing.
    """
    with _shared_lock:
        key = namespaces, allow_weak, tuple(preload)
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = ForkserverSandbox(layers_in_force(namespaces, allow_weak), preload)
        return found


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()  # another thread may have held it
    for sandbox in list(_sandboxes):
        sandbox.forget()


os.register_at_fork(after_in_child=_after_fork)

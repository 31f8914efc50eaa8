"""The forkserver: a zygote with the packages loaded forks a locked child for each call or session.

This side starts the zygote at the first call, and a new one if it is lost. What runs on the other side is in ``inside/``.

The forkserver of :mod:`multiprocessing` would not do. A process has one for all, Ray, vLLM and torch included. It has this
process's environment, runs the job's script again in its children, takes pickles, and cannot enter namespaces for us alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import TypeVar

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox.files import Files, visible_files
from rapo_rllib.sandbox.forked_process import ForkedProcess, LostProcess, SandboxResult
from rapo_rllib.sandbox.inside.jail import NAMESPACES, SandboxLimits
from rapo_rllib.sandbox.machine import layers_in_force, start

T = TypeVar("T")

START_S = 60.0  # for a zygote that reads its packages from a cold disk
_END_S = 5.0  # for a zygote to end by itself
SEND_S = 15.0  # for a request to be taken
_GONE_S = 0.5  # for the zygote's socket to end after a child's

logger = logging.getLogger(__name__)


class ZygoteProcess:
    """A running monitor and its zygote, which end with this object.

    Args:
        layers: what its children are locked into.
        preload: packages to load.
        files: what code can read.

    Raises:
        ToolError: it does not start, or a package cannot be loaded.
    """

    def __init__(self, layers: Sequence[str], preload: Sequence[str], files: Files) -> None:
        folder = "" if NAMESPACES in layers else tempfile.mkdtemp(prefix="rapo-sandbox-")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _living.add(self)
        settings = {
            "layers": list(layers),
            "files": files._asdict(),
            "preload": list(preload),
            "folder": folder,
            "control": theirs.fileno(),
        }
        with theirs:
            try:
                self.process = start("start", "monitor", settings, subprocess.DEVNULL, None, [theirs.fileno()])
            except OSError as error:
                self.control.close()
                raise ToolError(f"python tool: cannot start its sandbox: {error}") from error
        self.stop = weakref.finalize(self, _stop, os.getpid(), self.process, self.control, folder)
        self._await()

    def _await(self) -> None:
        self.control.settimeout(START_S)
        try:
            said = self.control.recv(4096).decode() or "it ended, and stderr says why"
        except TimeoutError:
            said = f"no answer within {START_S:g} s"
        self.control.settimeout(SEND_S)
        if said != "ready":
            self.stop()
            raise ToolError(f"python tool: its sandbox did not start: {said}")

    def forget(self) -> None:
        """Close a forked process's copy of the zygote's socket: the zygote ends when the last copy is closed."""
        self.control.close()


def _stop(owner: int, process: subprocess.Popen[bytes], control: socket.socket, folder: str) -> None:
    """End a zygote and all its children; do nothing in a process that was forked from the owner."""
    if os.getpid() == owner:
        control.close()
        try:
            process.wait(_END_S)  # the monitor reaps the others
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


class ForkserverSandbox:
    """Sandbox that forks a locked child for each call or session; thread-safe.

    Args:
        layers: what children are locked into, as ``machine.layers_in_force`` found it.
        preload: packages that are loaded once, in the zygote.

    Raises:
        ValueError: one of ``preload`` is not installed, or would let code read rapo_rllib.
    """

    def __init__(self, layers: Sequence[str], preload: Sequence[str] = ()) -> None:
        self.layers = tuple(layers)
        self._preload, self._files = tuple(preload), visible_files(preload)
        self._zygote: ZygoteProcess | None = None
        self._lock = threading.Lock()
        _living.add(self)

    def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run code in a fresh process; if the zygote is lost meanwhile, run it once more."""

        def run_in(control: socket.socket) -> SandboxResult:
            with contextlib.closing(ForkedProcess(control, limits, one_call=True)) as process:
                return process.run(code)

        return self._twice(run_in)

    def open(self, limits: SandboxLimits) -> ForkedProcess:
        """Fork a process for several calls."""
        return self._twice(lambda control: ForkedProcess(control, limits, one_call=False))

    def _twice(self, work: Callable[[socket.socket], T]) -> T:
        for _ in range(2):
            with self._lock:
                zygote = self._zygote = self._zygote or ZygoteProcess(self.layers, self._preload, self._files)
            try:
                return work(zygote.control)
            except (LostProcess, TimeoutError) as lost:
                self._drop_if_gone(zygote, hangs=isinstance(lost, TimeoutError))
                error = lost
        raise ToolError(f"python tool: its sandbox ended twice under a call: {error}") from error

    def _drop_if_gone(self, zygote: ZygoteProcess, hangs: bool) -> None:
        """Stop a zygote that is gone or hangs, so that the next call starts another; keep it if it lost one child only."""
        with self._lock:
            if self._zygote is zygote and (hangs or wait([zygote.control], _GONE_S)):
                self._zygote = None
                zygote.stop()
                logger.warning("python tool: its sandbox %s, and is started again", "hangs" if hangs else "was killed")

    def close(self) -> None:
        """End the zygote and all its children; a later call starts another."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.stop()
                self._zygote = None

    def forget(self) -> None:
        """Drop the parent's zygote in a forked process, so that its next call starts one of its own."""
        self._lock, self._zygote = threading.Lock(), None  # another thread may have held the lock


_living: weakref.WeakSet[ForkserverSandbox | ZygoteProcess] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[tuple[str, bool, tuple[str, ...]], ForkserverSandbox] = weakref.WeakValueDictionary()


def shared_sandbox(namespaces: str, allow_weak: bool, preload: Sequence[str]) -> ForkserverSandbox:
    """Find or make this process's one sandbox for these options of the python tool; it lives as long as it is in use.

    Nothing is started yet, but the machine is probed.

    Raises:
        ValueError: this machine does not give a layer that is required, or a package is missing.
    """
    key = namespaces, allow_weak, tuple(preload)
    found = _shared.get(key)
    if found is None:  # two threads may come here: one sandbox is kept
        found = _shared.setdefault(key, ForkserverSandbox(layers_in_force(namespaces, allow_weak), preload))
    return found


def _after_fork() -> None:
    for one in list(_living):
        one.forget()


os.register_at_fork(after_in_child=_after_fork)

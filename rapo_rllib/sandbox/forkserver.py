"""The forkserver backend: a zygote with the packages loaded forks a locked child for each call or session.

This side starts the zygote at the first call, gives every child its pipes, and starts a new zygote if one is lost. What runs on
the other side is in ``inside/``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox.base import ENDED, LostProcess, SandboxLimits, SandboxResult
from rapo_rllib.sandbox.exchange import exchange, make_pipes
from rapo_rllib.sandbox.files import visible_files
from rapo_rllib.sandbox.inside.runner import STATUSES
from rapo_rllib.sandbox.zygote_process import ZygoteProcess

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 15.0  # beyond a call's own time, under load; then the zygote itself counts as hung


class ForkserverSandbox:
    """Forks a locked child for each call or session; thread-safe.

    Args:
        layers: what children are locked into, as ``machine.layers_in_force`` found it.
        preload: packages that are loaded once, in the zygote.
        packages: distributions that code can read besides those.

    Raises:
        ValueError: one of ``packages`` is not installed, or brings what code must not read.
    """

    def __init__(self, layers: Sequence[str], preload: Sequence[str] = (), packages: Sequence[str] = ()) -> None:
        self.layers = tuple(layers)
        self._preload, self._files = tuple(preload), visible_files(preload, packages)
        self._running: list[ZygoteProcess] = []  # one or none
        self._lock = threading.Lock()
        weakref.finalize(self, _stop, self._running)
        _sandboxes.add(self)

    def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run code in a fresh process; once more if the zygote is lost under it."""

        def run_in(zygote: ZygoteProcess) -> SandboxResult:
            with contextlib.closing(ForkedProcess(zygote, limits, secrets.randbits(32), one_call=True)) as process:
                return process.run(code)

        return self._twice(run_in)

    def open(self, limits: SandboxLimits, seed: int) -> ForkedProcess:
        """A fresh process for several calls."""
        return self._twice(lambda zygote: ForkedProcess(zygote, limits, seed, one_call=False))

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
_processes: weakref.WeakSet[ForkedProcess] = weakref.WeakSet()


class ForkedProcess:
    """One child of the zygote. Its end is noticed, and the child killed, when this side closes its lifeline.

    Raises:
        LostProcess: nobody takes the request.
        ToolError: this process has no descriptors left to talk to it by.
    """

    def __init__(self, zygote: ZygoteProcess, limits: SandboxLimits, seed: int, one_call: bool) -> None:
        self._zygote, self._limits = zygote, limits
        self._busy, self._closed = threading.Lock(), False
        order = json.dumps({"limits": limits.told(one_call), "seed": seed}).encode()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            try:
                self._lifeline, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.enter_context(self._lifeline)
                theirs.enter_context(end)
                self._pipes, fds = make_pipes()
            except OSError as error:
                raise ToolError(f"python tool: no way to its sandbox: {error}") from error
            ours.callback(self._pipes.close)
            for fd in fds:
                theirs.callback(os.close, fd)
            self._order(order, [end.fileno(), *fds])
            ours.pop_all()
        _processes.add(self)

    def _order(self, order: bytes, fds: list[int]) -> None:
        try:
            socket.send_fds(self._zygote.control, [order], fds)
        except OSError as error:
            if isinstance(error, TimeoutError):  # it hangs
                self._zygote.stop()
            raise LostProcess(str(error)) from error

    def run(self, code: str, timeout_s: float | None = None) -> SandboxResult:
        """Run code after the earlier calls; ``timeout_s`` is another limit for this one.

        Raises:
            LostProcess: this process is gone, with the zygote or alone; or it was closed, maybe meanwhile.
            ToolError: the child could not be forked or locked.
        """
        try:
            with self._busy:
                if self._closed:
                    raise LostProcess("it was closed")
                return self._run(code, self._limits.timeout_s if timeout_s is None else timeout_s)
        except BaseException:
            self._closed = True  # an answer may still come, to nobody
            raise
        finally:
            if self._closed:
                self.close()

    def _run(self, code: str, timeout_s: float) -> SandboxResult:
        started, most = time.monotonic(), self._limits.max_output_bytes
        self._tell({"timeout_s": timeout_s})
        deadline, lifeline = started + timeout_s + GRACE_S, self._lifeline
        output, event = exchange(self._pipes, code, most, deadline, lifeline.fileno(), lambda: hear(lifeline))
        if event == "deadline":  # what should have killed it does not work
            self._zygote.stop()
            event = {"ended": 0, "cause": "timeout"}
        outcome = "output" if event == "output" else _outcome(event)
        self._closed = self._closed or outcome in ENDED
        return SandboxResult(output, outcome, time.monotonic() - started)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._lifeline.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            return  # it ended; why is waiting to be read

    def close(self) -> None:
        """Kill the child, if it still runs. A call that is under way ends, and closes what it has read from."""
        self._closed = True
        with contextlib.suppress(OSError):  # it is closed already
            self._lifeline.shutdown(socket.SHUT_RDWR)
        if self._busy.acquire(blocking=False):
            try:
                self.let_go()
            finally:
                self._busy.release()

    def let_go(self) -> None:
        """Close this process's descriptors: the child ends with the last copy of them."""
        self._lifeline.close()
        self._pipes.close()


def hear(lifeline: socket.socket) -> dict[str, Any]:
    """Read what the zygote says next of a child.

    Raises:
        LostProcess: nothing more will come.
    """
    try:
        message = lifeline.recv(4096)
    except ConnectionResetError:  # it closed its end before it read all of ours; what it said last is still here
        message = lifeline.recv(4096)
    if not message:
        raise LostProcess("it is gone")
    found: dict[str, Any] = json.loads(message)
    return found


def _outcome(event: dict[str, Any]) -> str:
    if "status" in event:
        number = event["status"]  # of the child's making
        return STATUSES[number] if number < len(STATUSES) else "exception"
    cause = event.get("cause") or event.get("failed")
    if cause in ("timeout", "scratch"):
        return str(cause)
    if cause:
        raise ToolError(f"python tool: its sandbox could not run a call: {cause}")
    return "killed" if event["ended"] < 0 else "exit"


def _after_fork() -> None:
    """In a forked process: close this module's descriptors, or the parent's children would not see the parent close them."""
    for process in list(_processes):
        process.let_go()
    for sandbox in list(_sandboxes):
        sandbox.forget()


os.register_at_fork(after_in_child=_after_fork)

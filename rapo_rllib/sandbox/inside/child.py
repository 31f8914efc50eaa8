"""A forked child, seen from the zygote: its calls, its deadline, its end."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from .jail import Jail, Limits
from .warden import WATCH_S, Orders, heard

LOCKED = 0xFE  # a child's first byte, before it reads any code
_CPU_CLOCK = 2  # of clock ids made from process ids: the scheduler's own count


class Parent(Protocol):
    """The things of the zygote that a child forked from it needs."""

    jail: Jail
    orders: Orders | None
    children: list[Child]

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` when ``fd`` can be read."""

    def forget(self, fd: int) -> None:
        """No longer."""


class Child:
    """One forked child, seen from the zygote."""

    def __init__(self, zygote: Parent, pid: int, lifeline: socket.socket, status: int, limits: Limits, number: int) -> None:
        self.pid, self.number, self.limits = pid, number, limits
        self.deadline: float | None = None  # None: no call is running
        self._zygote, self._lifeline, self._status = zygote, lifeline, status
        self._pidfd = os.pidfd_open(pid)
        self._cause: str | None = None
        self._locked = False
        self._timeout_s = 0.0  # of the present call
        self._num_calls = 0
        self._watch_at: float | None = None  # when the warden is told of the present call
        try:
            for fd, handler in (lifeline.fileno(), self._on_message), (status, self._on_status), (self._pidfd, self._on_end):
                zygote.watch(fd, partial(self._alone, handler))
        except OSError:
            os.close(self._pidfd)
            raise

    def _alone(self, handler: Callable[[], None]) -> None:
        """Whatever goes wrong with a child ends that child, and its supervisor is told; never the zygote, and so the others."""
        try:
            handler()
        except Exception as error:
            self.kill(f"failed: {error!r}")

    def _on_message(self) -> None:
        """The supervisor begins a call, or is done with the child."""
        message = heard(self._lifeline)
        if message is None:
            return
        if not message:
            self._zygote.forget(self._lifeline.fileno())
            self.kill()
            return
        self._timeout_s = json.loads(message)["timeout_s"]
        now = time.monotonic()
        self.deadline = now + self._timeout_s
        self._watch_at = now + WATCH_S if self._zygote.orders is not None else None
        if self._num_calls:
            if "rlimits" in self._zygote.jail.layers:
                self._allow_cpu(self._timeout_s)
            self.signal(signal.SIGCONT)
        self._num_calls += 1

    def _allow_cpu(self, seconds: float) -> None:
        used = time.clock_gettime((~self.pid << 3) | _CPU_CLOCK)
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_CPU)
        soft = int(used + seconds) + 2
        resource.prlimit(self.pid, resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))

    def _on_status(self) -> None:
        """The child is locked in, could not be, or finished a call: then it is killed, or stopped until the next one."""
        try:
            said = os.read(self._status, 4096)
        except BlockingIOError:
            return
        if not said:  # it closed the pipe, or is about to be reaped
            self._zygote.forget(self._status)
            return
        if not self._locked:
            if said[0] != LOCKED:
                self.kill(f"failed: {said.decode('utf-8', 'replace')}")
                return
            self._locked = True
            self.deadline = self.deadline and time.monotonic() + self._timeout_s
            said = said[1:]
        if said and self.deadline is None:  # code goes past the zygote: it may be done before its call was heard of
            self._on_message()
        if said and self.deadline is not None:
            self.deadline = None
            self.signal(signal.SIGKILL if self.limits.one_call else signal.SIGSTOP)
            if not self.limits.one_call:
                self._order("look")  # what it left behind
            say(self._lifeline, {"status": said[0]})

    def due(self) -> float | None:
        """When :meth:`check` has something to do; None: not in the present call."""
        if self.deadline is None:
            return None
        return self.deadline if self._watch_at is None else min(self.deadline, self._watch_at)

    def check(self, now: float) -> None:
        """Kill it if its time is over; have its folder watched if it takes longer than most."""
        if self.deadline is None:
            return
        if now >= self.deadline:
            self.kill("timeout")
        elif self._watch_at is not None and now >= self._watch_at:
            self._watch_at = None
            self._order("watch")

    def _order(self, do: str) -> None:
        if self._zygote.orders is not None:
            about = {"pid": self.pid, "bytes": self.limits.scratch_bytes, "files": self.limits.scratch_files}
            self._zygote.orders.give(do, self.number, **about)

    def kill(self, cause: str | None = None) -> None:
        """SIGKILL; the first cause counts."""
        self._cause = self._cause or cause
        self.deadline = None
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal, unless it is dead already."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def _on_end(self) -> None:
        """The child is dead: reap it, clear up, say so."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        for fd in (self._pidfd, self._status, self._lifeline.fileno()):
            self._zygote.forget(fd)
        os.close(self._pidfd)
        os.close(self._status)
        self._zygote.children.remove(self)
        self._order("remove")
        code = os.waitstatus_to_exitcode(status)
        say(self._lifeline, {"ended": code, "cause": self._cause or ("timeout" if code == -signal.SIGXCPU else None)})
        hang_up(self._lifeline)


def say(lifeline: socket.socket, message: dict[str, object]) -> None:
    """Tell the supervisor, which may be no longer interested."""
    try:
        lifeline.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return


def hang_up(lifeline: socket.socket) -> None:
    """Close it, read to its end: to the other side a socket that is closed with something unread is an error, not an end."""
    try:
        while lifeline.recv(4096, socket.MSG_DONTWAIT):
            continue
    except OSError:  # nothing there, or the other side is gone
        pass
    lifeline.close()

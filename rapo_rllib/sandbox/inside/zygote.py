"""The zygote: holds the loaded packages, and forks a locked child for each call or session.

    supervisor --(control socket: limits and three descriptors)--> zygote --(fork, lock)--> child
    supervisor <--(lifeline, one per child: "call" down, "status" and "ended" up)--> zygote

Code and output do not pass here: the child has a pipe for each, whose other ends are the supervisor's. So the zygote never
holds one trajectory's text while it forks the child of another. It reads only JSON of the supervisor and single bytes of
children, ends when the control socket does, and kills whoever passes a deadline.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from . import runner, scratch
from .jail import NAMESPACES, REQUEST_FD, STATUS_FD, Jail, Limits, address_space, die_with_parent

_CPU_CLOCK = 2  # of clock ids made from process ids: the scheduler's own count
LOCKED = 0xFE  # a child's first byte, before it reads any code
_WATCH_S = 0.1  # between two looks at the scratch folders


class Zygote:
    """What listens, forks and watches.

    Args:
        control: the supervisor's socket.
        jail: prepared.
        folder: where scratch folders are made; empty if every child has one of its own in memory.
        statm: opened on the zygote's own ``/proc/self/statm``.
    """

    def __init__(self, control: socket.socket, jail: Jail, folder: str, statm: int) -> None:
        self.control, self.jail, self.folder, self.statm = control, jail, folder, statm
        self.children: list[Child] = []
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._num_children = 0

    def serve(self) -> None:
        """Work until the supervisor is gone."""
        self.watch(self.control.fileno(), self._open)
        while self.control.fileno() >= 0:
            for fd, _ in self._poll.poll(self._patience_s()):
                if fd in self._handlers:  # an earlier event of this round may have closed it
                    self._handlers[fd]()
            now = time.monotonic()
            for child in self.children:
                child.check(now)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` when ``fd`` can be read."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def forget(self, fd: int) -> None:
        """No longer."""
        if self._handlers.pop(fd, None):
            self._poll.unregister(fd)

    def _patience_s(self) -> float | None:
        deadlines = [child.deadline for child in self.children if child.deadline is not None]
        if not deadlines:
            return None
        left = max(min(deadlines) - time.monotonic(), 0.0)
        return left if NAMESPACES in self.jail.layers else min(left, _WATCH_S)

    def _open(self) -> None:
        message, fds, *_ = socket.recv_fds(self.control, 4096, 3)
        if not message:
            self.forget(self.control.fileno())
            self.control.close()
            return
        if len(fds) < 3:  # no descriptors left; the supervisor sees its end of the lifeline close
            for fd in fds:
                os.close(fd)
            return
        order = json.loads(message)
        lifeline = socket.socket(fileno=fds[0])
        self._num_children += 1
        folder = os.path.join(self.folder, str(self._num_children)) if self.folder else ""
        try:
            self._fork(Limits(*order["limits"]), order["seed"], lifeline, fds[1], fds[2], folder)
        except OSError as error:  # no more processes or descriptors
            lifeline.send(json.dumps({"failed": str(error)}).encode())
            lifeline.close()
        finally:
            os.close(fds[1])
            os.close(fds[2])

    def _fork(self, limits: Limits, seed: int, lifeline: socket.socket, request: int, output: int, folder: str) -> None:
        if folder:
            os.mkdir(folder, 0o700)
        status_in, status_out = os.pipe()
        base_bytes, parent = address_space(self.statm), os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                become_child(self.jail, limits, seed, (request, output, status_out), folder, base_bytes)
                runner.serve(limits.one_call)
            finally:
                os._exit(0)
        os.close(status_out)
        self.children.append(Child(self, pid, lifeline, status_in, limits, folder))


def become_child(jail: Jail, limits: Limits, seed: int, fds: tuple[int, int, int], folder: str, base_bytes: int) -> None:
    """Arrange the descriptors (request, output, status), lock this process in, and say so on the status pipe.

    A process that cannot be locked says why, and ends.
    """
    arrange(*fds)
    try:
        _seed(seed)
        jail.lock(limits, folder, base_bytes)
    except BaseException as error:
        os.write(STATUS_FD, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(STATUS_FD, bytes([LOCKED]))


def arrange(request: int, output: int, status: int) -> None:
    """Put the three pipes where :mod:`runner` expects them."""
    high = [os.dup(fd) for fd in (request, output, status)]  # none of them is a target of another now
    while any(fd <= STATUS_FD for fd in high):
        high = [os.dup(fd) for fd in high]
    for fd, target in zip((high[1], high[1], high[0], high[2]), (1, 2, REQUEST_FD, STATUS_FD), strict=True):
        os.dup2(fd, target)


def _seed(seed: int) -> None:
    """Random numbers of its own for each child; the same for one that replays another's inputs."""
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed)


class Child:
    """One forked child, seen from the zygote."""

    def __init__(self, zygote: Zygote, pid: int, lifeline: socket.socket, status: int, limits: Limits, folder: str) -> None:
        self.pid, self.folder, self.limits = pid, folder, limits
        self.deadline: float | None = None  # None: no call is running
        self._zygote, self._lifeline, self._status = zygote, lifeline, status
        self._pidfd = os.pidfd_open(pid)
        self._cause: str | None = None
        self._locked = False
        self._timeout_s = 0.0  # of the present call
        self._num_calls = 0
        zygote.watch(lifeline.fileno(), self._on_message)
        zygote.watch(status, self._on_status)
        zygote.watch(self._pidfd, self._on_end)

    def _on_message(self) -> None:
        """The supervisor begins a call, or is done with the child."""
        try:
            message = self._lifeline.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not message:
            self._zygote.forget(self._lifeline.fileno())
            self.kill()
            return
        self._timeout_s = json.loads(message)["timeout_s"]
        self.deadline = time.monotonic() + self._timeout_s
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
        said = os.read(self._status, 4096)
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
            self._say({"status": said[0]})

    def check(self, now: float) -> None:
        """Kill it if its time is over or its folder is full."""
        if self.deadline is None:
            return
        if now >= self.deadline:
            self.kill("timeout")
        elif self.folder and scratch.is_over(self.folder, self.limits.scratch_bytes, self.limits.scratch_files):
            self.kill("scratch")

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
        _, status = os.waitpid(self.pid, 0)
        for fd in (self._pidfd, self._status, self._lifeline.fileno()):
            self._zygote.forget(fd)
        os.close(self._pidfd)
        os.close(self._status)
        self._zygote.children.remove(self)
        if self.folder:
            scratch.remove(self.folder)
        code = os.waitstatus_to_exitcode(status)
        self._say({"ended": code, "cause": self._cause or ("timeout" if code == -signal.SIGXCPU else None)})
        self._lifeline.close()

    def _say(self, message: dict[str, object]) -> None:
        try:
            self._lifeline.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:  # the supervisor is no longer interested
            return

"""The zygote: holds the loaded packages, and forks a locked child for each call or session.

    supervisor --(control socket: limits and four descriptors)--> zygote --(fork, lock)--> child
    supervisor <--(lifeline, one per child: its pidfd at the start, its exit code at the end)-- zygote

Code, output and statuses go between supervisor and child over pipes, and the supervisor stops and kills by the pidfd. So the
zygote never holds one trajectory's text while it forks the child of another. It reads only JSON of the supervisor, kills a
child whose lifeline is hung up, and ends when the control socket does.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple

from . import runner
from .jail import REQUEST_FD, STATUS_FD, Jail, Limits, die_with_parent

LOCKED = b"\xfe"  # a child's first byte, before it reads any code


class Child(NamedTuple):
    """A forked child that nobody has waited for yet."""

    pid: int
    pidfd: int
    lifeline: socket.socket


class Zygote:
    """The process that listens, forks and reaps.

    Args:
        control: the supervisor's socket.
        jail: prepared.
        base_bytes: the address space that all packages take.
    """

    def __init__(self, control: socket.socket, jail: Jail, base_bytes: int) -> None:
        self.control, self._jail, self._base_bytes = control, jail, base_bytes
        self._poll = select.epoll()
        self._watched: dict[int, Child] = {}  # by pidfd, and by lifeline
        self._poll.register(control, select.EPOLLIN)

    def serve(self) -> None:
        """Work until the supervisor is gone."""
        while self.round():
            continue

    def round(self) -> bool:
        """Handle what has happened; whether there is still a supervisor.

        Orders come last: a descriptor that is closed may be a new child's at once, and must not have an old one's event.
        """
        events = [fd for fd, _ in self._poll.poll()]
        for fd in events:
            child = self._watched.get(fd)
            if child is not None and fd == child.pidfd:
                self._reap(child)
            elif child is not None:  # the supervisor has hung up
                self._forget(fd)
                os.kill(child.pid, signal.SIGKILL)
        return self.control.fileno() not in events or self._take_order()

    def _reap(self, child: Child) -> None:
        """A dead child: say how it ended."""
        _, status = os.waitpid(child.pid, 0)
        self._forget(child.pidfd)
        self._forget(child.lifeline.fileno())
        os.close(child.pidfd)
        say(child.lifeline, {"ended": os.waitstatus_to_exitcode(status)})
        child.lifeline.close()

    def _watch(self, fd: int, child: Child, events: int) -> None:
        self._poll.register(fd, events)
        self._watched[fd] = child

    def _forget(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _take_order(self) -> bool:
        message, fds, *_ = socket.recv_fds(self.control, 4096, 4)
        if len(fds) == 4:
            lifeline = socket.socket(fileno=fds.pop(0))
            try:
                self._fork(Limits(*json.loads(message)), lifeline, fds)
            except Exception as error:  # no more processes, descriptors, memory: this call's trouble, and no other's
                say(lifeline, {"failed": str(error)})
                lifeline.close()
        for fd in fds:  # too few: no descriptors are left; the supervisor sees its end of the lifeline close
            os.close(fd)
        return bool(message)

    def _fork(self, limits: Limits, lifeline: socket.socket, fds: list[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                become_child(self._jail, limits, fds, self._base_bytes)
                runner.serve(limits.one_call)
            finally:
                os._exit(0)
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            child = Child(pid, pidfd, lifeline)
            self._watch(pidfd, child, select.EPOLLIN)
            self._watch(lifeline.fileno(), child, 0)  # an end is reported always
        except BaseException:  # no descriptors or memory are left to watch it by
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # nobody would reap it later, and it has done nothing that could hold it up
            if pidfd >= 0:
                self._forget(pidfd)
                os.close(pidfd)
            raise
        say(lifeline, {"forked": pid}, [pidfd])


def become_child(jail: Jail, limits: Limits, fds: Sequence[int], base_bytes: int) -> None:
    """Arrange the pipes (request, output, status), lock this process in, and say so on the status pipe.

    A process that cannot be locked says why, and ends.
    """
    arrange(*fds)
    try:
        _seed()
        jail.lock(limits, base_bytes)
    except BaseException as error:
        os.write(STATUS_FD, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(STATUS_FD, LOCKED)


def arrange(request: int, output: int, status: int) -> None:
    """Put the three pipes where :mod:`runner` expects them."""
    high = [os.dup(fd) for fd in (request, output, status)]  # none of them is a target of another now
    while any(fd <= STATUS_FD for fd in high):
        high = [os.dup(fd) for fd in high]
    for fd, target in zip((high[1], high[1], high[0], high[2]), (1, 2, REQUEST_FD, STATUS_FD), strict=True):
        os.dup2(fd, target)


def _seed() -> None:
    """Random numbers of its own for each child."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def say(lifeline: socket.socket, message: dict[str, object], fds: Sequence[int] = ()) -> None:
    """Tell the supervisor, which may be no longer interested."""
    try:
        socket.send_fds(lifeline, [json.dumps(message).encode()], fds, socket.MSG_DONTWAIT)
    except OSError:
        return

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
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from . import runner
from .child import LOCKED, Child, hang_up, say
from .jail import REQUEST_FD, STATUS_FD, Jail, Limits, address_space, die_with_parent
from .warden import WATCH_S, Orders

_LONGEST_S = 3600.0  # of waiting: what a limit says may be more than the kernel takes


class Zygote:
    """The process that listens, forks and watches.

    Args:
        control: the supervisor's socket.
        jail: prepared.
        folder: where scratch folders are made; empty if every child has one of its own in memory.
        statm: opened on the zygote's own ``/proc/self/statm``.
        orders: to the warden of those folders.
    """

    def __init__(self, control: socket.socket, jail: Jail, folder: str, statm: int, orders: Orders | None = None) -> None:
        self.control, self.jail, self.folder, self.statm = control, jail, folder, statm
        self.children: list[Child] = []
        self.orders = orders
        self._poll = select.epoll()
        self._handlers: dict[int, tuple[int, Callable[[], None]]] = {}  # round they were added in, handler
        self._round = 0
        self._num_children = 0

    def serve(self) -> None:
        """Work until the supervisor is gone."""
        self.listen()
        while self.control.fileno() >= 0:
            self.round()

    def listen(self) -> None:
        """Before the first round."""
        self.watch(self.control.fileno(), self._open)
        if self.orders is not None:
            self.watch(self.orders.link.fileno(), self._on_over)

    def round(self) -> None:
        """Wait for events, handle them, and do what is due."""
        self.handle(self._poll.poll(self._patience_s()))
        now = time.monotonic()
        for child in self.children:
            child.check(now)
        if self.orders is not None:
            self.orders.flush()

    def handle(self, events: Sequence[tuple[int, int]]) -> None:
        """Call the handlers of the descriptors that had events, as ``epoll.poll`` lists them.

        An event may be of a descriptor that an earlier one of its round closed, and whose number a new child's got since. So a
        handler hears nothing in the round that it was added in; what is true of it is still there in the next one.
        """
        self._round += 1
        for fd, _ in events:
            added, handler = self._handlers.get(fd, (self._round, None))
            if handler is not None and added < self._round:
                handler()

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` when ``fd`` can be read, from the next round on. Handlers never wait."""
        self._poll.register(fd, select.EPOLLIN)
        self._handlers[fd] = self._round, handler

    def forget(self, fd: int) -> None:
        """No longer."""
        if self._handlers.pop(fd, None):
            self._poll.unregister(fd)

    def _patience_s(self) -> float | None:
        times = [due for child in self.children if (due := child.due()) is not None]
        if self.orders is not None and self.orders.waiting:
            times.append(time.monotonic() + WATCH_S)
        return min(max(min(times) - time.monotonic(), 0.0), _LONGEST_S) if times else None

    def _on_over(self) -> None:
        """A child holds too much."""
        number = self.orders.over() if self.orders is not None else None
        for child in self.children:
            if child.number == number:
                child.kill("scratch")

    def _open(self) -> None:
        try:
            message, fds, *_ = socket.recv_fds(self.control, 4096, 3, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
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
        except Exception as error:  # no more processes, descriptors, memory, disk: this call's trouble, and no other's
            if self.orders is not None:
                self.orders.give("remove", self._num_children)
            say(lifeline, {"failed": str(error)})
            hang_up(lifeline)
        finally:
            os.close(fds[1])
            os.close(fds[2])

    def _fork(self, limits: Limits, seed: int, lifeline: socket.socket, request: int, output: int, folder: str) -> None:
        if folder:
            os.mkdir(folder, 0o700)
            self.jail.expect(folder)
        status_in, status_out = os.pipe()
        os.set_blocking(status_in, False)
        base_bytes, parent = address_space(self.statm), os.getpid()
        try:
            pid = os.fork()
        except BaseException:
            os.close(status_in)
            raise
        else:
            if pid == 0:
                try:
                    die_with_parent(parent)
                    become_child(self.jail, limits, seed, (request, output, status_out), folder, base_bytes)
                    runner.serve(limits.one_call)
                finally:
                    os._exit(0)
        finally:
            os.close(status_out)
        try:
            child = Child(self, pid, lifeline, status_in, limits, self._num_children)
        except BaseException:  # no descriptors are left to watch it by
            self.forget(lifeline.fileno())
            self.forget(status_in)
            os.close(status_in)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # nobody would reap it later, and it has done nothing that could hold it up
            raise
        self.children.append(child)


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

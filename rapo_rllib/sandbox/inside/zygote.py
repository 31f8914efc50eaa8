"""The zygote: holds the loaded packages, and forks a locked child for each call or session.

    supervisor --(control socket: limits, a socket and a pipe)--> zygote --(fork, lock)--> child
    supervisor --(the socket: code)--> child
    supervisor <--(the socket: its pidfd, LOCKED, a status for each code; the zygote's status at its end)-- child

The child prints to the pipe. The supervisor stops and kills it by the pidfd. So the zygote never holds one trajectory's text
while it forks the child of another. It reads only the supervisor's JSON, and ends when the control socket is closed.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import sys
from typing import Any

from . import runner
from .jail import SOCKET_FD, Jail, SandboxLimits, die_with_parent

LOCKED = b"\xfe"  # of a child that is locked in, and waits for code


class Zygote:
    """The process that listens, forks and reaps.

    Args:
        control: the supervisor's socket.
        jail: the walls of each child, prepared.
        base_bytes: the address space that all packages take.
    """

    def __init__(self, control: socket.socket, jail: Jail, base_bytes: int) -> None:
        self.control, self._jail, self._base_bytes = control, jail, base_bytes
        self.ends = selectors.PollSelector()
        self.ends.register(control, selectors.EVENT_READ)

    def round(self) -> bool:
        """Wait for requests and for ends of children, handle them, and return whether there is still a supervisor."""
        for key, _ in self.ends.select():
            if key.data is not None:
                self._reap(key.fd, *key.data)
            elif not self._take_order():
                return False
        return True

    def _reap(self, pidfd: int, pid: int, connection: socket.socket) -> None:
        self.ends.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        _say(connection, bytes([runner.KILLED if os.WIFSIGNALED(status) else runner.EXIT]))
        connection.close()

    def _take_order(self) -> bool:
        message, fds, *_ = socket.recv_fds(self.control, 4096, 2)
        if len(fds) == 2:
            connection = socket.socket(fileno=fds.pop(0))
            try:
                self._fork(json.loads(message), connection, fds[0])
            except Exception as error:  # no processes, descriptors or memory left: this request alone fails
                _say(connection, f"{type(error).__name__}: {error}".encode())
                connection.close()
        for fd in fds:  # if too few came, for want of descriptors, the supervisor sees the end of its socket
            os.close(fd)
        return bool(message)

    def _fork(self, order: list[Any], connection: socket.socket, output: int) -> None:
        *limits, one_call = order
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                self._become_child(SandboxLimits(*limits), bool(one_call), connection, output)
                runner.serve()
            finally:
                os._exit(0)
        try:
            self.ends.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
        except BaseException:  # else the child would never be reaped
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _become_child(self, limits: SandboxLimits, one_call: bool, connection: socket.socket, output: int) -> None:
        """Lock this process in, and tell the supervisor; if that fails, tell it why, and end."""
        told = connection.fileno()
        try:
            socket.send_fds(connection, [b"no descriptor is left"], [os.pidfd_open(os.getpid())])  # read if no fd arrives
            for fd, target in ((output, 1), (output, 2), (connection.fileno(), SOCKET_FD)):
                os.dup2(fd, target)
            told = SOCKET_FD  # the lock closes all others
            _seed()
            self._jail.lock(limits, one_call, self._base_bytes)
        except BaseException as error:
            os.write(told, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os.write(SOCKET_FD, LOCKED)


def _say(connection: socket.socket, message: bytes) -> None:
    """Send a message to the supervisor, which may have closed the socket."""
    try:
        connection.send(message, socket.MSG_DONTWAIT)
    except OSError:
        return


def _seed() -> None:
    """Give each child random numbers of its own."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()

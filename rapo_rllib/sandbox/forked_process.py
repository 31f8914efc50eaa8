"""A child of the zygote, seen from the supervisor, which sends code and reads output until the child ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from multiprocessing.connection import wait

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox.inside.jail import SandboxLimits
from rapo_rllib.sandbox.inside.runner import STATUSES
from rapo_rllib.sandbox.inside.zygote import LOCKED

ENDED = frozenset({"timeout", "killed", "output", "exit"})  # outcomes after which a process is gone
GRACE_S = 15.0  # for a child to be forked, and to be locked in, under load
_CHUNK = 65536


class LostProcess(Exception):
    """A process ended between two calls, or with its zygote; its code is not to blame."""


@dataclass(frozen=True)
class SandboxResult:
    """The outcome of one call.

    ``outcome`` comes from the code's own process (ok, exception, syntax, memory), from the zygote (killed, exit) or from the
    supervisor (timeout, output). The code can forge all but the last two: never conclude from it that an answer is right.
    """

    output: bytes  # stdout and stderr, in order
    outcome: str
    seconds: float


class ForkedProcess:
    """One child of a zygote.

    Args:
        control: the zygote's socket.
        limits: of each call.
        one_call: whether the kernel, too, limits the CPU time of the process to that of one call.

    Raises:
        LostProcess: the zygote is gone.
        TimeoutError: the zygote hangs.
        ToolError: the child cannot be forked or locked in, or this process has no descriptors left for its socket and pipe.
    """

    def __init__(self, control: socket.socket, limits: SandboxLimits, one_call: bool) -> None:
        self._limits, self._owner, self._busy = limits, os.getpid(), threading.Lock()
        with contextlib.ExitStack() as held:
            self._order(control, json.dumps([*limits, one_call]).encode(), held)
            self._pidfd = self._await(held)
            held.callback(_kill, self._pidfd, self._owner)
            self._end = weakref.finalize(self, held.pop_all().close)

    def _order(self, control: socket.socket, order: bytes, ours: contextlib.ExitStack) -> None:
        with contextlib.ExitStack() as theirs:
            try:
                self._socket, end = socket.socketpair()
                ours.enter_context(self._socket)
                theirs.enter_context(end)
                reader, writer = os.pipe()
            except OSError as error:
                raise ToolError(f"python tool: no way to its sandbox: {error}") from error
            theirs.callback(os.close, writer)
            self._output = ours.enter_context(open(reader, "rb", buffering=0))
            os.set_blocking(reader, False)
            try:
                socket.send_fds(control, [order], [end.fileno(), writer])
            except TimeoutError:
                raise
            except OSError as error:
                raise LostProcess(str(error)) from error

    def _await(self, held: contextlib.ExitStack) -> int:
        """Wait until the child is forked and locked in, and return the descriptor by which it gets signals."""
        self._socket.settimeout(GRACE_S)
        said, fds, *_ = socket.recv_fds(self._socket, 4096, 1)
        if fds:
            held.callback(os.close, fds[0])
            said = self._heard()
        elif not said:
            raise LostProcess("it is gone")
        if not said.startswith(LOCKED):  # the status of a child that was killed at once may follow it
            raise ToolError(f"python tool: its sandbox could not run a call: {said.decode('utf-8', 'replace')}")
        self._socket.settimeout(self._limits.timeout_s)
        return fds[0]

    def run(self, code: str) -> SandboxResult:
        """Run code after the code of earlier calls.

        Raises:
            LostProcess: the zygote is gone; or the child was closed, maybe during this call, or belongs to another process.
        """
        if os.getpid() != self._owner:
            raise LostProcess("it is another process's")
        started = time.monotonic()
        with self._busy, contextlib.ExitStack() as unless_it_lives:
            if not self._end.alive:
                raise LostProcess("it was closed")
            unless_it_lives.callback(self._end)  # also after an exception: a late answer would be taken for the next call's
            _signal(self._pidfd, signal.SIGCONT)
            output, outcome = self._exchange(code)
            if outcome not in ENDED:
                _signal(self._pidfd, signal.SIGSTOP)  # until the next call
                unless_it_lives.pop_all()
        return SandboxResult(output, outcome, time.monotonic() - started)

    def _exchange(self, code: str) -> tuple[bytes, str]:
        """Send code, read until it has ended, and return what it printed, and its outcome."""
        deadline, most = time.monotonic() + self._limits.timeout_s, self._limits.max_output_bytes
        text = code.encode("utf-8", "replace")
        with contextlib.suppress(ConnectionError):  # the child has ended, as the socket will tell
            try:
                self._socket.sendall(len(text).to_bytes(8, "little") + text)
            except TimeoutError:  # code of an earlier call runs on, and only said that it was done
                return b"", "timeout"
        output, outcome, printed = bytearray(), "", self._output.fileno()
        ends: list[socket.socket | int] = [self._socket, printed]
        while not outcome:
            ready = wait(ends, max(deadline - time.monotonic(), 0))
            if printed in ready and self._receive(output) == b"":
                ends.remove(printed)
            if self._socket in ready:
                (said, *_) = self._heard()  # from the child, maybe forged by the code; or from the zygote
                outcome = STATUSES[said] if said < len(STATUSES) else "exception"
            elif len(output) > most or time.monotonic() >= deadline:
                outcome = "timeout"
        while outcome != "timeout" and len(output) <= most and self._receive(output):
            continue  # what was printed before the end
        return bytes(output), "output" if len(output) > most else outcome

    def _receive(self, output: bytearray) -> bytes | None:
        """Append what the pipe holds, and return it; None if it holds nothing yet, empty at its end."""
        chunk = self._output.read(_CHUNK)
        output += chunk or b""
        return chunk

    def _heard(self) -> bytes:
        """Return the next message of child or zygote."""
        try:
            said = self._socket.recv(4096)
        except (ConnectionResetError, TimeoutError):  # it ended without reading the code; it was not locked in in time
            said = b""
        if not said:
            raise LostProcess("it is gone")
        return said

    def close(self) -> None:
        """Kill the child, if it still runs. A call that is under way ends before its descriptors are closed."""
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)
            with self._busy:
                self._end()


def _signal(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _kill(pidfd: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked from the owner
        _signal(pidfd, signal.SIGKILL)

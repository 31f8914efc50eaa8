"""A child of the zygote, seen from the side that asked for it: code in, output out, until it is over."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import threading
import time

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox.base import ENDED, LostProcess, SandboxLimits, SandboxResult
from rapo_rllib.sandbox.inside.runner import STATUSES
from rapo_rllib.sandbox.inside.zygote import LOCKED
from rapo_rllib.sandbox.zygote_process import ZygoteProcess

GRACE_S = 15.0  # for a child to be forked, and to be locked in, under load
_CHUNK = 65536


class ForkedProcess:
    """One child of the zygote, which kills it when this side's end of its lifeline closes.

    Raises:
        LostProcess: nobody takes the request.
        ToolError: the child cannot be forked, or this process has no descriptors left to talk to it by.
    """

    def __init__(self, zygote: ZygoteProcess, limits: SandboxLimits, one_call: bool) -> None:
        self._zygote, self._limits, self._one_call = zygote, limits, one_call
        self._busy, self._closed = threading.Lock(), False
        self._pidfd, self._held = -1, contextlib.ExitStack()
        zygote.children.add(self)  # a process that is forked from now on closes its copies
        try:
            self._order(json.dumps(limits.told(one_call)).encode(), self._held)
            self._pidfd = self._await(self._held)
        except BaseException:
            self._held.close()
            raise

    def _order(self, order: bytes, ours: contextlib.ExitStack) -> None:
        with contextlib.ExitStack() as theirs:
            try:
                self._lifeline, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.enter_context(self._lifeline)
                theirs.enter_context(end)
                request, self._request = _pipe(theirs, ours)
                self._output, output = _pipe(ours, theirs)
                self._status, status = _pipe(ours, theirs)
            except OSError as error:
                raise ToolError(f"python tool: no way to its sandbox: {error}") from error
            try:
                socket.send_fds(self._zygote.control, [order], [end.fileno(), request, output, status])
            except OSError as error:
                raise self._lost(error) from error
        self._lifeline.settimeout(GRACE_S)
        os.set_blocking(self._request, False)
        os.set_blocking(self._output, False)

    def _await(self, ours: contextlib.ExitStack) -> int:
        """Wait until the child is forked and locked in; the descriptor by which it gets signals."""
        try:
            message, fds, *_ = socket.recv_fds(self._lifeline, 4096, 1)
        except OSError as error:
            raise self._lost(error) from error
        for fd in fds:
            ours.callback(os.close, fd)
        said = os.read(self._status, 4096) if fds and _has_input(self._status, GRACE_S) else b""
        if not message or (fds and not said):
            raise LostProcess("it is gone")
        if not said.startswith(LOCKED):
            why = said.decode("utf-8", "replace") or json.loads(message).get("failed", "no descriptor is left")
            raise ToolError(f"python tool: its sandbox could not run a call: {why}")
        return fds[0]

    def _lost(self, error: OSError) -> LostProcess:
        if isinstance(error, TimeoutError):  # the zygote hangs
            self._zygote.stop(hangs=True)
        return LostProcess(str(error))

    def run(self, code: str) -> SandboxResult:
        """Run code after the earlier calls.

        Raises:
            LostProcess: the zygote is gone; or this process was closed, maybe meanwhile.
        """
        try:
            with self._busy:
                if self._closed:
                    raise LostProcess("it was closed")
                result = self._run(code)
                self._closed = self._closed or result.outcome in ENDED
                return result
        except BaseException:
            self._closed = True  # an answer may still come, to nobody
            raise
        finally:
            if self._closed:
                self.close()

    def _run(self, code: str) -> SandboxResult:
        started = time.monotonic()
        self._signal(signal.SIGCONT)
        output, outcome = self._exchange(code)
        if not self._one_call:
            self._signal(signal.SIGSTOP)  # until the next call
        return SandboxResult(output, outcome, time.monotonic() - started)

    def _exchange(self, code: str) -> tuple[bytes, str]:
        """Send code and read until it is over: what it printed, and its outcome."""
        text = code.encode("utf-8", "replace")
        waiting = memoryview(len(text).to_bytes(8, "little") + text)
        output, outcome, most = bytearray(), "", self._limits.max_output_bytes
        deadline = time.monotonic() + self._limits.timeout_s
        with selectors.PollSelector() as selector:
            for fd in (self._status, self._lifeline.fileno(), self._output):
                selector.register(fd, selectors.EVENT_READ)
            selector.register(self._request, selectors.EVENT_WRITE)
            while not outcome:
                ready = {key.fd for key, _ in selector.select(max(deadline - time.monotonic(), 0))}
                if self._request in ready and not (waiting := _send(self._request, waiting)):
                    selector.unregister(self._request)
                if self._output in ready and not _receive(self._output, output):
                    selector.unregister(self._output)
                outcome = self._said(ready, selector)
                if not outcome and (len(output) > most or time.monotonic() >= deadline):
                    outcome = "output" if len(output) > most else "timeout"
        while outcome != "timeout" and len(output) <= most and _receive(self._output, output):
            continue  # what was written before
        return bytes(output), "output" if len(output) > most else outcome

    def _said(self, ready: set[int], selector: selectors.BaseSelector) -> str:
        """The outcome that child or zygote have told; empty: none yet."""
        if self._status in ready:
            if said := os.read(self._status, 4096):  # of the code's making, maybe
                return STATUSES[said[0]] if said[0] < len(STATUSES) else "exception"
            selector.unregister(self._status)  # the code closed it
        elif self._lifeline.fileno() in ready:
            return self._ended()
        return ""

    def _ended(self) -> str:
        """What the zygote says of the child's end."""
        message = self._lifeline.recv(4096)
        if not message:
            raise LostProcess("it is gone")
        return "killed" if json.loads(message)["ended"] < 0 else "exit"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Kill the child, if it still runs. A call that is under way ends, and closes what it has read from."""
        self._closed = True
        with contextlib.suppress(OSError):  # it is closed already
            self._lifeline.shutdown(socket.SHUT_RDWR)
        if self._busy.acquire(blocking=False):
            try:
                if self._pidfd >= 0:
                    self._signal(signal.SIGKILL)
                self.let_go()
            finally:
                self._busy.release()

    def let_go(self) -> None:
        """Close this process's descriptors: the child ends with the last copy of them."""
        self._pidfd = -1
        self._held.close()


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Make a pipe whose ends are closed by these two."""
    ends = os.pipe()
    for stack, fd in zip((reader, writer), ends, strict=True):
        stack.callback(os.close, fd)
    return ends


def _has_input(fd: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within so many seconds."""
    ends = select.poll()
    ends.register(fd, select.POLLIN)
    return bool(ends.poll(1000 * seconds))


def _send(fd: int, waiting: memoryview) -> memoryview:
    """Send a piece and return what is left; nothing if nobody reads any more."""
    try:
        return waiting[os.write(fd, waiting) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _receive(fd: int, output: bytearray) -> bool:
    """Append what there is; False at the end of the pipe or if there is nothing."""
    try:
        chunk = os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    output += chunk
    return bool(chunk)

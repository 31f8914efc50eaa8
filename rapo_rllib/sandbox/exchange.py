"""One call over the pipes of a sandboxed process: code in, output out, until an event says that it is over."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_CHUNK = 65536


@dataclass
class Pipes:
    """This side's ends; the output can be read without waiting, the request written without waiting."""

    request: int
    output: int

    def close(self) -> None:
        """May be called twice."""
        for fd in (self.request, self.output):
            if fd >= 0:
                os.close(fd)
        self.request = self.output = -1


def make_pipes() -> tuple[Pipes, tuple[int, int]]:
    """This side's ends, and the other side's (request, output)."""
    request_in, request_out = os.pipe()
    try:
        output_in, output_out = os.pipe()
    except OSError:
        os.close(request_in)
        os.close(request_out)
        raise
    os.set_blocking(request_out, False)
    os.set_blocking(output_in, False)
    return Pipes(request_out, output_in), (request_in, output_out)


def exchange(
    pipes: Pipes, code: str, max_bytes: int, deadline: float, event_fd: int, read_event: Callable[[], Any]
) -> tuple[bytes, Any]:
    """Send ``code`` and read until ``read_event`` has something, the output is too long, or the deadline passed.

    Returns:
        The output, and the event; instead of it ``"output"`` or ``"deadline"``.
    """
    text = code.encode("utf-8", "replace")
    waiting = memoryview(len(text).to_bytes(8, "little") + text)
    output, event = bytearray(), None
    with selectors.PollSelector() as selector:
        selector.register(event_fd, selectors.EVENT_READ)
        selector.register(pipes.output, selectors.EVENT_READ)
        selector.register(pipes.request, selectors.EVENT_WRITE)
        while event is None:
            left = deadline - time.monotonic()
            ready = [key.fd for key, _ in selector.select(left)] if left > 0 else []
            if not ready and time.monotonic() >= deadline:
                return bytes(output), "deadline"
            if pipes.request in ready:
                waiting = _send(pipes.request, waiting)
                if not waiting:
                    selector.unregister(pipes.request)
            if pipes.output in ready and not _receive(pipes.output, output, max_bytes):
                selector.unregister(pipes.output)
            if len(output) > max_bytes:
                return bytes(output), "output"
            if event_fd in ready:
                event = read_event()
    while len(output) <= max_bytes and _receive(pipes.output, output, max_bytes):
        continue  # what was written before the event
    return bytes(output), "output" if len(output) > max_bytes else event


def _send(fd: int, waiting: memoryview) -> memoryview:
    """Send a piece and return what is left; nothing if nobody reads any more."""
    try:
        return waiting[os.write(fd, waiting) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _receive(fd: int, output: bytearray, max_bytes: int) -> bool:
    """Append what there is; False at the end of the pipe or if there is nothing."""
    try:
        chunk = os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    output += chunk
    return bool(chunk)

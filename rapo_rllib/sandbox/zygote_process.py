"""A running zygote, seen from the side that started it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox.files import Files
from rapo_rllib.sandbox.inside.jail import NAMESPACES
from rapo_rllib.sandbox.programs import start

START_S = 60.0  # of a zygote that reads its packages from a cold disk
SEND_S = 15.0  # for a request to be taken, and answered
_END_S = 5.0  # for the monitor to clear up
_GONE_MS = 500  # between the ends of its sockets


class ZygoteProcess:
    """A monitor and its zygote, with the packages loaded.

    Args:
        layers: what its children are locked into.
        preload: packages to load.
        files: what code can read.

    Raises:
        ToolError: it does not start, or a package cannot be loaded.
    """

    def __init__(self, layers: Sequence[str], preload: Sequence[str], files: Files) -> None:
        self.owner, self.layers, self._stopping = os.getpid(), frozenset(layers), threading.Lock()
        self.folder = "" if NAMESPACES in layers else tempfile.mkdtemp(prefix="rapo-sandbox-")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "layers": list(layers),
            "files": files._asdict(),
            "preload": list(preload),
            "folder": self.folder,
            "control": theirs.fileno(),
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as it runs
        try:
            self.process = start("start", settings, (theirs.fileno(),), subprocess.DEVNULL, self._errors)
        except OSError as error:
            self.release()
            raise ToolError(f"python tool: cannot start its sandbox: {error}") from error
        finally:
            theirs.close()
        self.children: weakref.WeakSet[Any] = weakref.WeakSet()  # this side's ends of them
        _running.add(self)
        self._await()

    def _await(self) -> None:
        self.control.settimeout(START_S)
        try:
            ready = self.control.recv(4096)
        except TimeoutError:
            ready = b""
        self.control.settimeout(SEND_S)
        if not ready:
            said = self.stop() or f"no answer within {START_S:g} s"
            raise ToolError(f"python tool: its sandbox did not start: {said}")

    def is_gone(self) -> bool:
        """Whether it has ended, or ends now; one that lives is given a moment, for it closes one socket after another."""
        try:
            ends = select.poll()
            ends.register(self.control, 0)  # its end is reported always
            return bool(ends.poll(_GONE_MS))
        except ValueError:  # it was stopped
            return True

    def stop(self, hangs: bool = False) -> str:
        """End it and all its children, at once if it ``hangs``; nothing in a process that was forked from the owner.

        Returns:
            What it wrote to stderr: why it ended, if it did so by itself.
        """
        if os.getpid() != self.owner:
            return ""
        with self._stopping:  # callers that wait for one zygote that hangs give it up at the same time
            if self._errors.closed:
                return ""
            self.control.close()
            try:
                self.process.wait(0 if hangs else _END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)  # the monitor did, unless it was killed
            with self._errors:
                self._errors.seek(0)
                return self._errors.read().decode("utf-8", "replace").strip()

    def release(self) -> None:
        """Close all that this side holds: the other side ends by itself."""
        self.control.close()
        self._errors.close()


_running: weakref.WeakSet[ZygoteProcess] = weakref.WeakSet()


def _release_all() -> None:
    """In a forked process: zygotes and their children belong to whoever started them, and see that process close its ends."""
    for zygote in list(_running):
        zygote.release()
        for child in list(zygote.children):
            child.let_go()


os.register_at_fork(after_in_child=_release_all)

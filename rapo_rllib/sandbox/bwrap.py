"""The bwrap backend: bubblewrap makes the namespaces, and the process inside locks itself in as the forkserver's children do.

The seccomp filter is not handed to bwrap, which would install it before it starts Python and so would have to allow ``execve``
and all that an interpreter does at its start. The process installs the same filter itself, before it reads any code.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox import inside
from rapo_rllib.sandbox.base import ENDED, LostProcess, SandboxLimits, SandboxResult
from rapo_rllib.sandbox.exchange import Pipes, exchange, make_pipes
from rapo_rllib.sandbox.files import visible_files
from rapo_rllib.sandbox.inside.child import LOCKED
from rapo_rllib.sandbox.inside.jail import NAMESPACES, Limits
from rapo_rllib.sandbox.inside.namespaces import SCRATCH, WORK
from rapo_rllib.sandbox.inside.runner import STATUSES
from rapo_rllib.sandbox.programs import command, start

_START_S = 30.0
_OPTIONS = ["--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
_SCRATCH = ["--cap-add", "CAP_SYS_ADMIN", "--dir", WORK, "--chdir", SCRATCH]  # for bwrap's folders have no limit of files
_INSIDE = "/sandbox"  # where the process finds this package's part that runs inside


class BwrapSandbox:
    """Starts a process of its own for each call or session; packages are loaded by the code that imports them.

    Args:
        layers: what processes lock themselves into.
        preload: modules that code can import.
        packages: distributions that code can read besides those.

    Raises:
        ValueError: bwrap is not installed, or cannot make its namespaces here; or packages are as in :func:`visible_files`.
    """

    def __init__(self, layers: Sequence[str], preload: Sequence[str] = (), packages: Sequence[str] = ()) -> None:
        found = shutil.which("bwrap")
        if found is None:
            raise ValueError(
                "env_config.tools: python option backend = 'bwrap': there is no program bwrap here: install bubblewrap "
                "(apt install bubblewrap), or use backend: forkserver"
            )
        self._bwrap, self._inner_layers = found, tuple(layers)
        self.layers = (*layers, "bwrap")
        self._files = visible_files(preload, packages)
        try:
            self.run("1", SandboxLimits(timeout_s=_START_S))
        except ToolError as error:
            raise ValueError(
                f"env_config.tools: python option backend = 'bwrap': it does not work on this machine ({error}): allow user "
                "namespaces, or use backend: forkserver"
            ) from None

    def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run code in a fresh process."""
        process = self._start(limits, secrets.randbits(32), one_call=True)
        try:
            return process.run(code)
        except LostProcess as error:
            raise ToolError("python tool: a bwrap process was lost") from error
        finally:
            process.close()

    def open(self, limits: SandboxLimits, seed: int) -> BwrapProcess:
        """A fresh process for several calls."""
        return self._start(limits, seed, one_call=False)

    def close(self) -> None:
        """Nothing runs but processes of calls and sessions."""

    def _start(self, limits: SandboxLimits, seed: int, one_call: bool) -> BwrapProcess:
        pipes, theirs = make_pipes()
        status_in, status_out = os.pipe()
        info_in, info_out = os.pipe()
        alive_in, alive_out = os.pipe()
        given = (*theirs, status_out, info_out)
        told = {
            "alive": alive_in,
            "fds": given,
            "command": self._command(info_out),
            "settings": self._settings(limits.told(one_call), seed, theirs, status_out),
        }
        with tempfile.TemporaryFile() as errors:
            try:
                process = start("guard", told, (*given, alive_in), subprocess.DEVNULL, errors)
            except OSError as error:
                pipes.close()
                for fd in (status_in, info_in, alive_out):
                    os.close(fd)
                raise ToolError(f"python tool: cannot start bwrap: {error}") from error
            finally:
                for fd in (*given, alive_in):
                    os.close(fd)
            with open(info_in, encoding="utf-8") as info:
                said = info.read()
            pid = json.loads(said)["child-pid"] if said else 0
            started = BwrapProcess(process, _pidfd(pid), pipes, (status_in, alive_out), limits, one_call)
            problem = started.wait_until_locked()
            if problem is not None:
                started.close()
                errors.seek(0)
                said = errors.read().decode("utf-8", "replace").strip()
                raise ToolError(f"python tool: bwrap did not start: {said or problem}")
        return started

    def _settings(self, limits: Limits, seed: int, pipes: tuple[int, int], status: int) -> dict[str, Any]:
        """What the process inside is told; in its namespaces it makes its scratch folder as a child of the zygote does."""
        layers = (*self._inner_layers, NAMESPACES)
        return {"layers": layers, "files": self._files._asdict(), "limits": limits, "seed": seed, "fds": (*pipes, status)}

    def _command(self, info: int) -> list[str]:
        python, *arguments = command("single", _INSIDE)
        python = os.path.realpath(python)
        covered = set(self._files.hidden)
        places = {path: os.path.realpath(path) for path in {*self._files.shown, *covered, python}}
        shown: list[str] = []
        for real, path in sorted(((real, path) for path, real in places.items()), key=lambda place: place[0].split("/")):
            shown += ["--tmpfs", path] if path in covered else _show(real)
        for path, real in places.items():  # once all is there: a link must not make a folder that is to be shown
            shown += ["--symlink", real, path] if real != path else []
        for path in self._files.hidden:
            shown += ["--remount-ro", path]
        folder = str(Path(inside.__file__).parent)
        shown += ["--ro-bind", folder, f"{_INSIDE}/inside"]
        return [self._bwrap, *_OPTIONS, *shown, *_SCRATCH, "--info-fd", str(info), "--", python, *arguments]


def _show(real: str) -> list[str]:
    return ["--dev-bind" if real.startswith("/dev/") else "--ro-bind", real, real]


class BwrapProcess:
    """One process in bwrap's namespaces.

    Args:
        process: bwrap's guard; what it started dies with it.
        pidfd: of the process inside, as it is seen from here; None: it never started.
        pipes: to it.
        fds: where it says that it is locked in, and how each call went; and what tells the guard that this side lives.
        limits: of each call.
        one_call: it ends after its first call.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pidfd: int | None,
        pipes: Pipes,
        fds: tuple[int, int],
        limits: SandboxLimits,
        one_call: bool,
    ) -> None:
        self._process, self._pidfd, self._pipes, self._status = process, pidfd, pipes, fds[0]
        self._limits, self._one_call = limits, one_call
        held = fds if pidfd is None else (*fds, pidfd)
        self._closer = weakref.finalize(self, _close, process, pipes, held)

    def wait_until_locked(self) -> str | None:
        """What it says instead of being locked in."""
        ready, _, _ = select.select([self._status], [], [], _START_S)
        said = os.read(self._status, 4096) if ready else b"it takes too long"
        return None if said == bytes([LOCKED]) else said.decode("utf-8", "replace")

    def run(self, code: str) -> SandboxResult:
        """Run code after the earlier calls."""
        started, limits = time.monotonic(), self._limits
        if not self._closer.alive or self._process.poll() is not None:
            raise LostProcess
        self._signal(signal.SIGCONT)
        deadline = started + limits.timeout_s
        output, event = exchange(self._pipes, code, limits.max_output_bytes, deadline, self._status, self._heard)
        outcome = {"deadline": "timeout", "output": "output"}.get(event, event)
        if outcome in ENDED or self._one_call:
            self.close()
        else:
            self._signal(signal.SIGSTOP)  # no computing between two calls
        return SandboxResult(output, outcome, time.monotonic() - started)

    def _heard(self) -> str:
        said = os.read(self._status, 4096)
        if said:
            return STATUSES[said[0]] if said[0] < len(STATUSES) else "exception"
        try:
            code = self._process.wait(self._limits.timeout_s)  # 128 and more for signals
        except subprocess.TimeoutExpired:  # it closed the pipe and goes on
            return "timeout"
        return "timeout" if code == 128 + signal.SIGXCPU else "killed" if code > 128 or code < 0 else "exit"

    def _signal(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Kill it."""
        self._closer()


def _pidfd(pid: int) -> int | None:
    """What signals go to, whatever process has the number later."""
    try:
        return os.pidfd_open(pid) if pid else None
    except ProcessLookupError:
        return None


def _close(process: subprocess.Popen[bytes], pipes: Pipes, fds: tuple[int, ...]) -> None:
    pipes.close()
    for fd in fds:
        os.close(fd)  # of which the guard sees one
    process.wait()

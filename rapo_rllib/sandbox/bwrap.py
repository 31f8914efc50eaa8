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

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox import inside
from rapo_rllib.sandbox.base import ENDED, LostProcess, SandboxLimits, SandboxResult
from rapo_rllib.sandbox.exchange import Pipes, exchange, make_pipes
from rapo_rllib.sandbox.files import package_folders, readable_paths
from rapo_rllib.sandbox.inside.jail import Limits
from rapo_rllib.sandbox.inside.runner import STATUSES
from rapo_rllib.sandbox.inside.zygote import LOCKED
from rapo_rllib.sandbox.programs import command, start

_START_S = 30.0
_OPTIONS = ["--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
_INSIDE = "/sandbox"  # where the process finds this package's part that runs inside


class BwrapSandbox:
    """Starts a process of its own for each call or session; packages are loaded by the code that imports them.

    Args:
        layers: what processes lock themselves into.
        packages: distributions that code can read; None: all that are installed.

    Raises:
        ValueError: bwrap is not installed, or cannot make its namespaces here.
    """

    def __init__(self, layers: Sequence[str], packages: Sequence[str] | None = None) -> None:
        found = shutil.which("bwrap")
        if found is None:
            raise ValueError(
                "env_config.tools: python option backend = 'bwrap': there is no program bwrap here: install bubblewrap "
                "(apt install bubblewrap), or use backend: forkserver"
            )
        self._bwrap, self._inner_layers = found, tuple(layers)
        self.layers = (*layers, "bwrap")
        self._readable = readable_paths(packages)
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
        told = {"alive": alive_in, "fds": given, "command": self._command(limits.told(one_call), seed, given)}
        with tempfile.TemporaryFile() as errors:
            try:
                process = start(command("guard", told), (*given, alive_in), subprocess.DEVNULL, errors)
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
            started = BwrapProcess(process, pid, pipes, (status_in, alive_out), limits, one_call)
            problem = started.wait_until_locked()
            if problem is not None:
                started.close()
                errors.seek(0)
                said = errors.read().decode("utf-8", "replace").strip()
                raise ToolError(f"python tool: bwrap did not start: {said or problem}")
        return started

    def _command(self, limits: Limits, seed: int, fds: Sequence[int]) -> list[str]:
        settings = {
            "layers": self._inner_layers,
            "readable": self._readable,
            "packages": package_folders(),
            "limits": limits,
            "seed": seed,
            "fds": list(fds[:3]),
        }
        python, *arguments = command("single", settings, _INSIDE)
        python = os.path.realpath(python)
        shown = []
        for path in [*self._readable, python]:
            shown += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path]
        folder = str(Path(inside.__file__).parent)
        shown += ["--ro-bind", folder, f"{_INSIDE}/inside", "--size", str(limits.scratch_bytes), "--tmpfs", "/scratch"]
        return [self._bwrap, *_OPTIONS, *shown, "--chdir", "/scratch", "--info-fd", str(fds[3]), "--", python, *arguments]


class BwrapProcess:
    """One process in bwrap's namespaces.

    Args:
        process: bwrap's guard; what it started dies with it.
        pid: of the process inside, as it is seen from here.
        pipes: to it.
        fds: where it says that it is locked in, and how each call went; and what tells the guard that this side lives.
        limits: of each call.
        one_call: it ends after its first call.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pid: int,
        pipes: Pipes,
        fds: tuple[int, int],
        limits: SandboxLimits,
        one_call: bool,
    ) -> None:
        self._process, self._pid, self._pipes, self._status = process, pid, pipes, fds[0]
        self._limits, self._one_call = limits, one_call
        self._closer = weakref.finalize(self, _close, process, pipes, fds)

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
        if self._pid and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def close(self) -> None:
        """Kill it."""
        self._closer()


def _close(process: subprocess.Popen[bytes], pipes: Pipes, fds: tuple[int, int]) -> None:
    pipes.close()
    for fd in fds:
        os.close(fd)  # of which the guard sees one
    process.wait()

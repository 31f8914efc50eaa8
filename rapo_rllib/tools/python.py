"""The python tool: every call runs in a fresh process, with limits, and leaves nothing behind.

Covered: wall clock, CPU time, address space, file size, open files, amount of output, the parent's environment variables,
stdin, working files, left-over processes. A hardened sandbox is not promised here: the code runs as the same user, and can
read that user's files, use the network, and signal that user's processes.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

from rapo_rllib.errors import ToolError
from rapo_rllib.tools import python_child
from rapo_rllib.tools.base import ToolResult

_CHILD = Path(python_child.__file__)
_MAX_FILE_BYTES = 16 * 2**20
_BYTES_PER_CHAR = 4  # of UTF-8, at most
_START_UP_S = 5.0  # a loaded machine may start Python slowly; the child's own clock begins after that
_GRACE_S = 2.0  # to clear up after SIGTERM
_FENCE = re.compile(r"^```[a-zA-Z0-9]*\n(.*?)\n?```$", re.DOTALL)
_ERRORS = {
    python_child.EXCEPTION: "exception",
    python_child.SYNTAX: "syntax",
    python_child.MEMORY: "memory",
    python_child.TIMEOUT: "timeout",
    python_child.KILLED: "killed",
}


class PythonTool:
    """Runs Python code and shows what it prints; the value of a last expression is printed as in a notebook.

    Args:
        timeout_s: wall clock of the code, in seconds; CPU time is limited to a second more.
        memory_mb: address space in MiB.
        max_output_chars: what is kept of stdout and stderr together; a flood ends the call.

    Raises:
        ValueError: a limit that is not positive.
    """

    name = "python"
    tag = "python"

    def __init__(self, timeout_s: float = 5.0, memory_mb: int = 512, max_output_chars: int = 2000) -> None:
        limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "max_output_chars": max_output_chars}
        for key, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ValueError(f"env_config.tools: python option {key} = {value!r}: must be a positive number")
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.max_output_chars = max_output_chars

    def run(self, input: str) -> ToolResult:
        """Run the code; ``ToolError`` if no process can be started."""
        started = time.monotonic()
        code = _clean(input)
        if not code:
            return ToolResult("(no code)", "empty", time.monotonic() - started)
        folder = tempfile.mkdtemp(prefix="rapo-python-")
        try:
            output, error = self._run_process(code, folder)
        finally:
            _remove(folder)
        return ToolResult(self._text(output, error), error, time.monotonic() - started)

    def _run_process(self, code: str, folder: str) -> tuple[bytes, str | None]:
        cpu_s = math.ceil(self.timeout_s) + 1
        limits = [self.timeout_s, cpu_s, int(self.memory_mb * 2**20), _MAX_FILE_BYTES]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_CHILD), *map(str, limits), *_package_folders()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={"OPENBLAS_NUM_THREADS": "1"},  # its threads' stacks alone would pass the memory limit
                start_new_session=True,
            )
        except OSError as problem:
            raise ToolError(f"python tool: cannot start {sys.executable}: {problem}") from problem
        sender = threading.Thread(target=_send, args=(process, code), daemon=True)
        sender.start()
        output, error = self._collect(process)
        sender.join()
        return output, error

    def _collect(self, process: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
        """Read until the child is gone, says too much, or takes too long; nothing of its group lives on."""
        assert process.stdout is not None
        deadline = time.monotonic() + self.timeout_s + _START_UP_S
        limit = self.max_output_chars * _BYTES_PER_CHAR
        output, ended = _read(process.stdout.fileno(), deadline, limit)
        stopped = None if ended else "output" if len(output) > limit else "timeout"
        if stopped:
            os.kill(process.pid, signal.SIGTERM)  # terminate() would reap a dead supervisor, and lose the group's id
            _read(process.stdout.fileno(), time.monotonic() + _GRACE_S, None)
        # The supervisor holds the pipe, so the end of output means that it ends. Until wait() its group id is not given away.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        return output, stopped or _ERRORS.get(process.returncode, "killed" if process.returncode < 0 else None)

    def _text(self, output: bytes, error: str | None) -> str:
        text = output.decode("utf-8", "replace").strip("\n")
        notes = {
            "timeout": f"TimeoutError: the code ran longer than {self.timeout_s:g} s",
            "killed": "Killed: the process ended by a signal",
        }
        if len(text) > self.max_output_chars:
            text = f"{text[: self.max_output_chars]}\n... (output cut after {self.max_output_chars} characters)"
        if error in notes:
            text = f"{text}\n{notes[error]}".strip("\n")
        return text or "(no output)"


def _package_folders() -> list[str]:
    """Where installed packages lie; handed over because running ``site`` in every child takes 5 ms."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _clean(code: str) -> str:
    """Without the indentation common to all lines, and without a Markdown fence."""
    code = textwrap.dedent(code.strip("\n")).strip()
    fenced = _FENCE.match(code)
    return fenced.group(1).strip("\n") if fenced else code


def _send(process: subprocess.Popen[bytes], code: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(code.encode("utf-8", "replace"))
        process.stdin.close()
    except BrokenPipeError:  # killed before it had read; its exit status tells
        return


def _read(fd: int, deadline: float, limit: int | None) -> tuple[bytes, bool]:
    """Read until the end (True), the deadline, or past ``limit`` bytes (None: read on and keep nothing)."""
    chunks: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while limit is None or size <= limit:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return b"".join(chunks), False
            chunk = os.read(fd, 65536)
            if not chunk:
                return b"".join(chunks), True
            if limit is not None:
                chunks.append(chunk)
                size += len(chunk)
    return b"".join(chunks), False


def _remove(folder: str) -> None:
    """Delete a working folder, also where the code took the permission to do so away."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(folder):
        os.chmod(folder, 0o700)
        for parent, names, _ in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(folder, ignore_errors=True)

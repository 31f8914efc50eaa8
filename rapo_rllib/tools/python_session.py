"""The python tool's state in one trajectory: a live process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox import ENDED, ForkedProcess, LostProcess, SandboxResult
from rapo_rllib.tools.base import ToolResult

LOST = "(the variables of earlier calls are lost)\n"
Observe = Callable[[str, Callable[[str], SandboxResult]], ToolResult]


class PythonSession:
    """The tool in one trajectory: runs all its code in one process, and a new one where that has ended.

    Args:
        open: makes a process.
        observe: of an input, and what runs code, what the model reads.
    """

    def __init__(self, open: Callable[[], ForkedProcess], observe: Observe) -> None:
        self._open, self._observe = open, observe
        self._process: ForkedProcess | None = None
        self._has_run = self._lost = False  # code in this process; earlier variables, which the next result says
        self._lock, self._closed = threading.Lock(), False

    def run(self, input: str) -> ToolResult:
        """Run the code after the earlier calls of this trajectory. ``ToolError`` if the sandbox is broken."""
        return self._observe(input, self._run)

    def _run(self, code: str) -> SandboxResult:
        started = time.monotonic()
        try:
            result = self._live().run(code)
        except LostProcess as error:
            self._forget()
            try:
                result = self._live().run(code)
            except LostProcess:
                raise ToolError("python tool: its sandbox ended twice under a call") from error
        output = LOST.encode() + result.output if self._lost else result.output
        self._lost = False
        if result.outcome in ENDED:
            self._forget()
        else:
            self._has_run = True
        return SandboxResult(output, result.outcome, time.monotonic() - started)

    def _live(self) -> ForkedProcess:
        if self._process is not None:
            return self._process
        process = self._open()
        with self._lock:
            if not self._closed:
                self._process = process
                return process
        process.close()
        raise ToolError("python tool: the trajectory has ended")

    def _forget(self) -> None:
        self._end()
        self._has_run, self._lost = False, self._lost or self._has_run

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def fork(self) -> PythonSession:
        """A fresh session. Raises ``ToolError`` where code has run: its sandbox lets no process be copied."""
        if self._has_run or self._lost:
            raise ToolError("python tool: with keep_state a trajectory that has run code does not branch")
        return PythonSession(self._open, self._observe)

    def close(self) -> None:
        """End the process, for good; a call that was given up, and still runs, ends with it."""
        self._closed = True
        self._end()

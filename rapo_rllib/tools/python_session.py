"""The python tool's state in one trajectory: a live process, and the inputs from which a branch makes its own."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox import ENDED, ForkedProcess, ForkserverSandbox, LostProcess, SandboxLimits, SandboxResult

LOST = "(the variables of earlier calls are lost)\n"
_AGAIN = 2.0  # an input that ended within a call's limit may take so many times as long when it runs again: others do, too


class PythonSession:
    """Runs the code of one trajectory in one process.

    A branch starts without a process. At its first call it runs the earlier inputs again, with the same random numbers (of
    ``random``, and of numpy where it is preloaded), which gives the same variables if the code depends on nothing else, such
    as the clock. (A copy of the process would need a sandbox that lets code fork.) Each has a limit of its own; whoever waits
    for the call is told by ``extra_s``.

    Args:
        sandbox: where processes come from.
        limits: of each call.
        inputs: that were run already, in order.
        seed: of random numbers.
        lost: the next result says that earlier variables are lost.
    """

    def __init__(
        self,
        sandbox: ForkserverSandbox,
        limits: SandboxLimits,
        inputs: Sequence[str] = (),
        seed: int | None = None,
        lost: bool = False,
    ) -> None:
        self._sandbox, self._limits, self._inputs = sandbox, limits, list(inputs)
        self._seed = secrets.randbits(32) if seed is None else seed
        self._process: ForkedProcess | None = None
        self._behind = bool(self._inputs)  # no process has run them
        self._lost = lost
        self._lock, self._closed = threading.Lock(), False

    @property
    def extra_s(self) -> float:
        """Seconds that the next call may take beyond its own limit, for inputs that are run again."""
        return _AGAIN * self._limits.timeout_s * len(self._inputs) if self._behind else 0.0

    def run(self, code: str) -> SandboxResult:
        """Run code after the earlier inputs; the first result after their variables were lost says so.

        Raises:
            ToolError: the sandbox is broken.
        """
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
            self._inputs.append(code)
        return SandboxResult(output, result.outcome, time.monotonic() - started)

    def _live(self) -> ForkedProcess:
        """The process, in the state after all inputs."""
        if self._behind and not self._caught_up(self._process or self._opened()):
            self._forget()
        return self._process or self._opened()

    def _caught_up(self, process: ForkedProcess) -> bool:
        limit = _AGAIN * self._limits.timeout_s
        try:
            if any(process.run(code, limit).outcome in ENDED for code in self._inputs):
                return False
        except BaseException:  # half of them have run
            self._end()
            raise
        self._behind = False
        return True

    def _opened(self) -> ForkedProcess:
        process = self._sandbox.open(self._limits, self._seed)
        with self._lock:
            if not self._closed:
                self._process = process
                return process
        process.close()
        raise ToolError("python tool: the trajectory has ended")

    def _forget(self) -> None:
        self._end()
        self._lost = self._lost or bool(self._inputs)
        self._inputs.clear()
        self._behind = False

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def fork(self) -> PythonSession:
        """A session that will have the same variables."""
        return PythonSession(self._sandbox, self._limits, self._inputs, self._seed, self._lost)

    def close(self) -> None:
        """End the process, for good; a call that was given up, and still runs, ends with it."""
        self._closed = True
        self._end()

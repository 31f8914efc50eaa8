"""The python tool: every call runs in a sandbox (``rapo_rllib/sandbox``), with limits, and leaves nothing behind.

    text between the tags -> code -> ForkserverSandbox -> SandboxResult -> what the model reads

``docs/security.md`` says what the sandbox promises, and what not.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from rapo_rllib.protocol.same_step import NOTHING_PRINTED
from rapo_rllib.sandbox import ForkserverSandbox, SandboxLimits, SandboxResult, SandboxSettings, shared_sandbox
from rapo_rllib.sandbox.settings import names, require
from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.tools.python_session import PythonSession
from rapo_rllib.validation import MOST, MOST_SECONDS

_BYTES_PER_CHAR = 4  # of UTF-8, at most
_PATIENCE_S = 30.0  # beyond a call's time: a sandbox that starts, a loaded machine
_FENCE = re.compile(r"^```[a-zA-Z0-9]*\n(.*?)\n?```$", re.DOTALL)


class PythonTool:
    """Runs Python code and shows what it prints; the value of a last expression is printed as in a notebook.

    Args:
        timeout_s: wall clock of the code, in seconds; CPU time is limited to a second more.
        memory_mb: address space in MiB, beyond what preloaded packages take.
        max_output_chars: what is kept of stdout and stderr together; a flood ends the call.
        keep_state: variables live as long as the trajectory; otherwise every call starts afresh.
        allow_weak_sandbox: run without those layers that this machine does not give, instead of refusing to.
        namespaces: ``auto`` uses user namespaces where the machine allows them, ``required`` refuses to run without them,
            ``off`` does without.
        preload: packages that the code can import; they are loaded once, so that this costs a call nothing.
        packages: names of installed distributions that the code can import as well, with what they require.

    Raises:
        ValueError: a wrong option; or this machine does not give a layer of the sandbox that is required.
    """

    name = "python"
    tag = "python"
    description = "Runs Python code and shows what it prints."
    argument = "code"

    def __init__(
        self,
        timeout_s: float = 5.0,
        memory_mb: float = 512,
        max_output_chars: int = 2000,
        keep_state: bool = False,
        allow_weak_sandbox: bool = False,
        namespaces: str = "auto",
        preload: Sequence[str] = ("numpy", "sympy"),
        packages: Sequence[str] = (),
    ) -> None:
        for key, value in {"timeout_s": timeout_s, "memory_mb": memory_mb, "max_output_chars": max_output_chars}.items():
            most = (MOST_SECONDS if key == "timeout_s" else MOST) / 10  # the limits of a call are some times as much
            positive = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= most
            require(positive, key, value, f"must be a positive number, at most {most:g}")
        require(isinstance(keep_state, bool), "keep_state", keep_state, "must be true or false")
        self.timeout_s, self.memory_mb, self.max_output_chars = timeout_s, memory_mb, max_output_chars
        self.keep_state = keep_state
        modules, distributions = names("preload", preload), names("packages", packages)
        self.settings = SandboxSettings(allow_weak_sandbox, namespaces, modules, distributions)
        self.limits = ToolLimits(timeout_s + _PATIENCE_S, 2 * max_output_chars)  # its own come first
        self._sandbox_limits = SandboxLimits(timeout_s, memory_mb, max_output_chars * _BYTES_PER_CHAR)
        self._sandbox: ForkserverSandbox | None = shared_sandbox(self.settings)

    @property
    def sandbox(self) -> ForkserverSandbox:
        """The sandbox of this process; equal settings share one."""
        if self._sandbox is None:
            self._sandbox = shared_sandbox(self.settings)
        return self._sandbox

    def run(self, input: str) -> ToolResult:
        """Run the code in a fresh process; ``ToolError`` if the sandbox is broken."""
        sandbox = self.sandbox
        return self.observe(input, lambda code: sandbox.run(code, self._sandbox_limits))

    def session(self) -> PythonToolSession | None:
        """With ``keep_state``, what one trajectory calls."""
        return PythonToolSession(self, PythonSession(self.sandbox, self._sandbox_limits)) if self.keep_state else None

    def close(self) -> None:
        """Let go of the sandbox, which ends with its last user."""
        self._sandbox = None

    def observe(self, input: str, run: Callable[[str], SandboxResult]) -> ToolResult:
        """Return what the model reads of its code's result."""
        started = time.monotonic()
        code = _clean(input)
        if not code:
            return ToolResult("(no code)", "empty", time.monotonic() - started)
        result = run(code)
        error = None if result.outcome == "ok" else result.outcome
        return ToolResult(self._text(result), error, time.monotonic() - started)

    def _text(self, result: SandboxResult) -> str:
        text = result.output.decode("utf-8", "replace").strip("\n")
        notes = {
            "timeout": f"TimeoutError: the code ran longer than {self.timeout_s:g} s",
            "killed": "Killed: the process ended by a signal",
            "exit": "Ended: the process left before the code was done",
        }
        if len(text) > self.max_output_chars:
            text = f"{text[: self.max_output_chars]}\n... (output cut after {self.max_output_chars} characters)"
        if result.outcome in notes:
            text = f"{text}\n{notes[result.outcome]}".strip("\n")
        return text or NOTHING_PRINTED

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sandbox": None}  # a sandbox belongs to its process


class PythonToolSession:
    """The tool in one trajectory."""

    def __init__(self, tool: PythonTool, session: PythonSession) -> None:
        self._tool, self._session = tool, session

    @property
    def extra_s(self) -> float:
        """Seconds for inputs that are run again."""
        return self._session.extra_s

    def run(self, input: str) -> ToolResult:
        """Run the code after the earlier calls of this trajectory."""
        return self._tool.observe(input, self._session.run)

    def fork(self) -> PythonToolSession:
        """A session in the same state, for a trajectory that branches."""
        return PythonToolSession(self._tool, self._session.fork())

    def close(self) -> None:
        """The trajectory ended."""
        self._session.close()


def _clean(code: str) -> str:
    """Without the indentation common to all lines, and without a Markdown fence."""
    code = textwrap.dedent(code.strip("\n")).strip()
    fenced = _FENCE.match(code)
    return fenced.group(1).strip("\n") if fenced else code

"""The python tool: code runs in a sandbox (``rapo_rllib/sandbox``), with limits; nothing outlives the call or trajectory.

    text between the tags -> code -> ForkserverSandbox -> SandboxResult -> what the model reads

``docs/security.md`` says what the sandbox promises, and what it does not.
"""

from __future__ import annotations

import re
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from rapo_rllib.errors import ToolError
from rapo_rllib.protocol.expert_tokens import NOTHING_PRINTED
from rapo_rllib.sandbox import ENDED, ForkedProcess, LostProcess, SandboxLimits, SandboxResult, shared_sandbox
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.tools.base import ToolLimits, ToolResult

_BYTES_PER_CHAR = 4  # of UTF-8, at most
_PATIENCE_S = 30.0  # beyond the time of a call, for a sandbox that starts, or a loaded machine
_FENCE = re.compile(r"^```[a-zA-Z0-9]*\n(.*?)\n?```$", re.DOTALL)
LOST = "(the variables of earlier calls are lost)\n"


@dataclass(eq=False)
class PythonTool(Knobs):
    """Tool that runs Python code and shows what it prints; a last expression is printed as in a notebook.

    Raises:
        ValueError: an option is wrong, or this machine lacks a required layer of the sandbox.
    """

    where: ClassVar[str] = "env_config.tools: python option "
    name: ClassVar[str] = "python"
    tag: ClassVar[str] = "python"
    description: ClassVar[str] = "Runs Python code and shows what it prints."
    argument: ClassVar[str] = "code"

    timeout_s: float = knob(5.0, "wall clock of the code of a call, in seconds", above=0)
    memory_mb: float = knob(512, "address space in MiB, beyond what preloaded packages take", above=0)
    max_output_chars: int = knob(2000, "what is kept of stdout and stderr together; a flood ends the call", at_least=1)
    keep_state: bool = knob(False, "variables live as long as the trajectory; otherwise every call starts afresh")
    allow_weak_sandbox: bool = knob(False, "run without layers that this machine does not give, instead of refusing to")
    namespaces: Literal["auto", "required", "off"] = knob(
        "auto", "user namespaces: where the machine allows them; `required` refuses to run without, `off` does without"
    )
    preload: tuple[str, ...] = knob(
        ("numpy", "sympy"), "modules that the code can import; they are loaded once", rule="a list of names"
    )

    def __post_init__(self) -> None:
        if isinstance(self.preload, list):
            self.preload = tuple(self.preload)
        super().__post_init__()
        self.limits = ToolLimits(self.timeout_s + _PATIENCE_S, 2 * self.max_output_chars)  # the sandbox's own are tighter
        self._sandbox_limits = SandboxLimits(self.timeout_s, self.memory_mb, self.max_output_chars * _BYTES_PER_CHAR)
        self.sandbox = shared_sandbox(self.namespaces, self.allow_weak_sandbox, self.preload)

    def run(self, input: str) -> ToolResult:
        """Run the code in a fresh process; ``ToolError`` if the sandbox is broken."""
        return self.observe(input, lambda code: self.sandbox.run(code, self._sandbox_limits))

    def open(self) -> ForkedProcess:
        """Start a fresh process for several calls."""
        return self.sandbox.open(self._sandbox_limits)

    def session(self) -> PythonSession | None:
        """Open the session of a trajectory; None without ``keep_state``."""
        return PythonSession(self) if self.keep_state else None

    def observe(self, input: str, run: Callable[[str], SandboxResult]) -> ToolResult:
        """Run the code in ``input`` by ``run``, and convert its result to what the model reads."""
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


def _clean(code: str) -> str:
    """Strip the indentation common to all lines, and a Markdown fence."""
    code = textwrap.dedent(code.strip("\n")).strip()
    fenced = _FENCE.match(code)
    return fenced.group(1).strip("\n") if fenced else code


class PythonSession:
    """The tool in one trajectory: one process for all its code, replaced by a new one if it has ended."""

    def __init__(self, tool: PythonTool) -> None:
        self._tool = tool
        self._process: ForkedProcess | None = None
        self._has_run = self._lost = False  # whether code has run in this process; whether variables are newly lost
        self._lock, self._closed = threading.Lock(), False

    def run(self, input: str) -> ToolResult:
        """Run the code after the earlier calls of this trajectory. ``ToolError`` if the sandbox is broken."""
        return self._tool.observe(input, self._run)

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
        process = self._tool.open()
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
        """Return a fresh session. Raises ``ToolError`` if code has run: the sandbox lets no process be copied."""
        if self._has_run or self._lost:
            raise ToolError("python tool: with keep_state a trajectory that has run code does not branch")
        return PythonSession(self._tool)

    def close(self) -> None:
        """End the process for good, and with it a call that was given up and still runs."""
        self._closed = True
        self._end()

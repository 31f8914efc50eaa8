"""The python tool: every call runs in a sandbox (``rapo_rllib/sandbox``), with limits, and leaves nothing behind.

    text between the tags -> code -> ForkserverSandbox -> SandboxResult -> what the model reads

``docs/security.md`` says what the sandbox promises, and what not.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from rapo_rllib.protocol.same_step import NOTHING_PRINTED
from rapo_rllib.sandbox import SandboxLimits, SandboxResult, shared_sandbox
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.tools.base import ToolLimits, ToolResult
from rapo_rllib.tools.python_session import PythonSession

_BYTES_PER_CHAR = 4  # of UTF-8, at most
_PATIENCE_S = 30.0  # beyond a call's time: a sandbox that starts, a loaded machine
_FENCE = re.compile(r"^```[a-zA-Z0-9]*\n(.*?)\n?```$", re.DOTALL)


@dataclass(eq=False)
class PythonTool(Knobs):
    """Runs Python code and shows what it prints; the value of a last expression is printed as in a notebook.

    Raises:
        ValueError: a wrong option; or this machine does not give a layer of the sandbox that is required.
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
        self.limits = ToolLimits(self.timeout_s + _PATIENCE_S, 2 * self.max_output_chars)  # its own come first
        self._sandbox_limits = SandboxLimits(self.timeout_s, self.memory_mb, self.max_output_chars * _BYTES_PER_CHAR)
        self.sandbox = shared_sandbox(self.namespaces, self.allow_weak_sandbox, self.preload)

    def run(self, input: str) -> ToolResult:
        """Run the code in a fresh process; ``ToolError`` if the sandbox is broken."""
        return self.observe(input, lambda code: self.sandbox.run(code, self._sandbox_limits))

    def session(self) -> PythonSession | None:
        """With ``keep_state``, what one trajectory calls."""
        return PythonSession(lambda: self.sandbox.open(self._sandbox_limits), self.observe) if self.keep_state else None

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


def _clean(code: str) -> str:
    """Without the indentation common to all lines, and without a Markdown fence."""
    code = textwrap.dedent(code.strip("\n")).strip()
    fenced = _FENCE.match(code)
    return fenced.group(1).strip("\n") if fenced else code

"""The interface of a tool. Flow: ParsedStep.tool_input -> Tool.run -> ToolResult -> observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from rapo_rllib.settings.knobs import Knobs, knob


@dataclass(frozen=True)
class ToolResult:
    """The outcome of one call.

    ``error`` says in one word why the call failed ("timeout", "exception", ...), for counting; the model reads ``text``.
    """

    text: str
    error: str | None = None
    seconds: float = 0.0  # wall clock of the call; 0: measured by the caller


@dataclass(frozen=True)
class ToolLimits(Knobs):
    """Limits of one call, enforced by ``bounded.py`` whatever the tool itself does.

    Raises:
        ValueError: a limit that is not positive.
    """

    where: ClassVar[str] = "env_config.tools: limits."

    timeout_s: float = knob(
        30.0, "a call that takes longer is given up; its trajectory goes on", above=0, rule="a positive number"
    )
    max_output_chars: int = knob(8000, "longer outputs are cut", at_least=1, rule="a positive whole number")


@runtime_checkable
class Tool(Protocol):
    """A tool that a policy may call between ``<tag>`` and ``</tag>``. Calls come from several threads at once.

    One object serves all trajectories of a process. The state of one trajectory is kept in a session (:class:`KeepsState`).

    A bad call (failing code, a query without hits, a timeout) is a ``ToolResult`` with ``error``. ``run`` raises ``ToolError``
    only if the tool itself is broken. A method ``close()``, if there is one, is called when the tool is no longer used.

    A tool may also have ``description``, ``argument`` and ``parameters``, which a prompt in the model's own format shows
    (``schema.py``). With ``parameters``, its input is the JSON of arguments that fit them. A tool with ``keeps_time = True``
    returns within its limits by itself, so its calls need not be abandoned.
    """

    name: str
    tag: str
    limits: ToolLimits

    def run(self, input: str) -> ToolResult:
        """Run the tool on the text between its tags, or on the one argument of a call."""


class ToolSession(Protocol):
    """The state of a tool in one trajectory. Optional ``extra_s``: seconds that the next call may take beyond the limit."""

    def run(self, input: str) -> ToolResult:
        """Run one call, as ``Tool.run``, after the earlier calls of this session."""

    def fork(self) -> ToolSession:
        """Copy the session with its state, for a trajectory that branches."""

    def close(self) -> None:
        """Close the session when its trajectory ends; may be called twice."""


@runtime_checkable
class KeepsState(Protocol):
    """A tool that gives every trajectory a session, opened at its first call."""

    def session(self) -> ToolSession | None:
        """Return a fresh session; None: this tool is set up to keep nothing between calls."""


@runtime_checkable
class SharesState(Protocol):
    """A tool that shares its session in a trajectory with other tools."""

    begins: bool  # whether sessions begin with the trajectory, not the first call; ``session_in`` may raise ``BusyError`` then

    def session_in(self, shared: dict[Any, Any]) -> ToolSession:
        """Open the tool's session; the parts that several tools share are kept in ``shared``, which each trajectory has."""

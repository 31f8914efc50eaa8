"""The state of a run for its checkpoints, beside what RLlib and the learners keep: that of each part, by its name.

RAPO.get_state --> RunState --> cursor, summary, buffer, replayed trajectories, starts, single steps, unaided successes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Stateful(Protocol):
    """A part of the run with a state of its own."""

    def get_state(self) -> Any:
        """The state, to be pickled."""

    def set_state(self, state: Any) -> None:
        """Go on from it; None: the checkpoint has none."""


class RunState:
    """The data set, the summary, the policy's own step traces, and parts that some runs have.

    Args:
        parts: by name; None: this run has none. What a checkpoint has of a ``buffer`` is handed on then, for a later run.
    """

    def __init__(self, parts: Mapping[str, Stateful | None]) -> None:
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self._buffer: Any = None  # of a checkpoint, in a run that never retrieves

    def get_state(self) -> dict[str, Any]:
        """Return the state of all parts, by name."""
        states = {"buffer": self._buffer, **{name: part.get_state() for name, part in self._parts.items()}}
        return {name: state for name, state in states.items() if state is not None}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the batch that would have come."""
        self._buffer = state.get("buffer")
        for name, part in self._parts.items():
            part.set_state(state.get(name))

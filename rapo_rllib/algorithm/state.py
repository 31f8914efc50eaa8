"""The state of a run that checkpoints hold beside RLlib's and the learners'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.envs.cursor import QuestionCursor


class Stateful(Protocol):
    """A part of the run with a state of its own."""

    def get_state(self) -> Any:
        """The state, to be pickled."""

    def set_state(self, state: Any) -> None:
        """Go on from it; None: the checkpoint has none."""


class KeptState:
    """Stands for a part that this run does not have: hands on what the checkpoint had of it, for a later run that does."""

    def __init__(self) -> None:
        self._state: Any = None

    def get_state(self) -> Any:
        """The state that was given."""
        return self._state

    def set_state(self, state: Any) -> None:
        """Keep it."""
        self._state = state


class RunState:
    """The data set, the summary, the policy's own step traces, and parts that some runs have.

    Args:
        cursor: of the questions.
        cursor_state: its position; questions that were not trained on are to be asked again.
        summary: of the run.
        more: other parts by name, for example the source of off-policy members; None: this run has none.
        buffer: the buffer's updater; None: this run never retrieves.
    """

    def __init__(
        self,
        cursor: QuestionCursor,
        cursor_state: Callable[[], dict[str, Any]],
        summary: RunSummary,
        more: Mapping[str, Stateful | None],
        buffer: Stateful | None,
    ) -> None:
        self._cursor, self._cursor_state, self._summary = cursor, cursor_state, summary
        self._parts: dict[str, Stateful] = {"buffer": KeptState() if buffer is None else buffer}
        self._parts |= {name: part for name, part in more.items() if part is not None}

    def get_state(self) -> dict[str, Any]:
        """Return the state of all parts, by name."""
        parts = {name: part.get_state() for name, part in self._parts.items()}
        kept = {name: state for name, state in parts.items() if state is not None}
        return {"cursor": self._cursor_state(), "summary": self._summary.get_state(), **kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the batch that would have come."""
        self._cursor.set_state(state["cursor"])
        self._summary.set_state(state["summary"])
        for name, part in self._parts.items():
            part.set_state(state.get(name))

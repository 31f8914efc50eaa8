"""Show how far ``rllib buffer build`` is: a bar on a terminal, a line now and then elsewhere, and what came of it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

from rapo_rllib.cli.build_display import duration

if TYPE_CHECKING:
    from rapo_rllib.agents.build import AgentBuild
    from rapo_rllib.agents.journal import Totals

LINE_EVERY_S = 10.0


class AgentDisplay:
    """Shows a build while it is entered; call it with every new state."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._said = time.monotonic()
        self._bar = Progress(BarColumn(), TextColumn("{task.description}")) if sys.stdout.isatty() else None
        self._task = self._bar.add_task("starting", total=None) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, state: AgentBuild) -> None:
        """Show it, if it is time."""
        now, total = time.monotonic(), (state.total - state.found) * state.samples
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=state.attempts, total=total, description=build_line(state))
        elif now - self._said >= LINE_EVERY_S or state.totals.questions == state.total:
            self._said = now
            typer.echo(build_line(state))


def build_line(state: AgentBuild) -> str:
    """Tell where it is, how fast it writes, and when it will be done: by attempts, of which a question takes several."""
    parts = [f"{state.totals.questions:,} of {state.total:,} questions"]
    if state.found:
        parts.append(f"{state.found:,} were finished before")
    parts.append(f"{state.attempts:,} attempts")
    parts.append(f"{state.totals.kept:,} trajectories kept")
    left = (state.total - state.found) * state.samples - state.attempts
    if state.attempts and state.seconds > 0:
        parts.append(f"{state.tokens / state.seconds:.0f} tokens/s")
        if left > 0:
            parts.append(f"{duration(left * state.seconds / state.attempts)} left")
    return " · ".join(parts)


def summary_lines(state: AgentBuild) -> list[str]:
    """Tell what came of a build, with what earlier runs of it did."""
    totals = state.totals
    lines = [
        f"questions: {totals.questions:,} of {state.total:,}, of which {totals.answered:,} have a trajectory that was kept",
        f"trajectories: {totals.attempts:,} written, {totals.kept:,} kept, {totals.steps:,} steps; {state.added:,} stored now",
        f"reward: {totals.reward / totals.attempts:.3f} on average over all that were written" if totals.attempts else "",
        f"ends: {_counted(totals)}" if totals.ends else "",
    ]
    lines += [f"failed {count:,} times: {error}" for error, count in totals.errors.most_common()]
    if state.seconds > 0 and state.attempts:
        speed = f"{state.tokens / state.seconds:.0f} tokens/s"
        lines.append(f"this run: {state.attempts:,} attempts in {duration(state.seconds)}, {speed}")
    if state.unfinished:
        lines.append(f"not finished: {state.unfinished:,} questions that the agent failed at; the same command asks them again")
    return [line for line in lines if line]


def _counted(totals: Totals) -> str:
    return ", ".join(f"{count:,} {end}" for end, count in totals.ends.most_common())

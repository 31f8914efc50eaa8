"""Show how far a build or an import is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

from rapo_rllib.cli.endings import INTERRUPTED, fail
from rapo_rllib.traces.rows import BuildProgress

if TYPE_CHECKING:
    from rapo_rllib.agents.asking import Progress

LINE_EVERY_S = 10.0


class Display:
    """Shows progress while it is entered."""

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

    def show(self, text: str, done: int, total: int, ended: bool) -> None:
        """Show it, if it is time."""
        now = time.monotonic()
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif now - self._said >= LINE_EVERY_S or ended:
            self._said = now
            typer.echo(text)


class BuildDisplay(Display):
    """Call it with every new progress.

    Args:
        things: what is counted, for people.
    """

    def __init__(self, things: str = "passages") -> None:
        super().__init__()
        self.latest: BuildProgress | None = None
        self._things, self._started = things, time.monotonic()

    def __call__(self, progress: BuildProgress) -> None:
        """Show it, if it is time."""
        self.latest = progress
        text = progress_line(progress, time.monotonic() - self._started, self._things)
        self.show(text, progress.seen, progress.total, ended=progress.seen == progress.total)


class AttemptsDisplay(Display):
    """Call it with how far an agent is; the last is said when it ends.

    Args:
        name: of the agent.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._line = name, ""

    def __call__(self, progress: Progress) -> None:
        """Show it, if it is time."""
        self._line = f"{self._name}: {attempts_line(progress, progress.seconds)}"
        self.show(self._line, progress.found + progress.ended, progress.total, ended=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self._line:
            typer.echo(self._line)


def attempts_line(progress: Progress, seconds: float) -> str:
    """Tell where an agent is, how fast it writes, and when it will be done."""
    done = progress.found + progress.ended
    parts = [f"{done:,} of {progress.total:,} attempts"]
    if progress.found:
        parts.append(f"{progress.found:,} were there before")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.ended and seconds > 0:
        parts.append(f"{progress.tokens / seconds:.0f} tokens/s")
        if left := progress.total - done:
            parts.append(f"{duration(left * seconds / progress.ended)} left")
    return " · ".join(parts)


@contextmanager
def resumable(things: str) -> Iterator[BuildDisplay]:
    """Show progress; after Ctrl-C say that the same command continues."""
    display = BuildDisplay(things)
    try:
        with display:
            yield display
    except KeyboardInterrupt:
        seen = display.latest.seen if display.latest else 0
        fail(f"Stopped after {seen:,} {things}. The same command, run again, continues from there.", INTERRUPTED)


@contextmanager
def counted(things: str, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Shows how many of how many ``things`` are read or written, as the caller tells; nothing (None) if ``quiet``."""
    if quiet:
        yield None
        return
    with BuildDisplay(things) as display:
        yield lambda seen, total: display(BuildProgress(seen, seen, total))


def progress_line(progress: BuildProgress, seconds: float, things: str = "passages") -> str:
    """Tell where it is, how fast it embeds, and when it will be done.

    >>> from rapo_rllib.traces.rows import BuildProgress
    >>> progress_line(BuildProgress(seen=600, embedded=400, total=1200), 4.0)
    '600 of 1,200 passages · 200 were stored before · 100/s · 6 s left'
    """
    parts = [f"{progress.seen:,} of {progress.total:,} {things}"]
    if known := progress.seen - progress.embedded:
        parts.append(f"{known:,} were stored before")
    if progress.embedded and seconds > 0:
        rate = progress.embedded / seconds
        parts.append(f"{rate:.0f}/s")
        if left := progress.total - progress.seen:
            parts.append(f"{duration(left / rate)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds in words: ``80 s``, ``15 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""Show how far a build or an import is: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import typer

from rapo_rllib.cli.endings import INTERRUPTED, fail
from rapo_rllib.traces.rows import BuildProgress

LINE_EVERY_S = 10.0


class Display:
    """Shows progress while it is entered."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def show(self, text: str, done: int, total: int, ended: bool) -> None:
        """Show it, if it is time."""
        if time.monotonic() - self._said >= LINE_EVERY_S or ended:
            self._said = time.monotonic()
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


@contextmanager
def resumable(things: str) -> Iterator[BuildDisplay]:
    """A display of what the same command goes on with after Ctrl-C, which is said then."""
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
    """Seconds in words: ``80 s``, ``15 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""Show how far a build or an import is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import typer

LINE_EVERY_S = 10.0


class BuildProgress(Protocol):
    """``seen`` of ``total`` were looked at; ``embedded`` of them were not stored before."""

    @property
    def seen(self) -> int: ...  # noqa: D102
    @property
    def embedded(self) -> int: ...  # noqa: D102
    @property
    def total(self) -> int: ...  # noqa: D102


class BuildDisplay:
    """Shows progress while it is entered; call it with every new one.

    Args:
        things: what is counted, for people.
    """

    def __init__(self, things: str = "passages") -> None:
        self.latest: BuildProgress | None = None
        self._things = things
        self._started = self._said = time.monotonic()
        self._bar = _Bar() if sys.stdout.isatty() else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.progress.stop()

    def __call__(self, progress: BuildProgress) -> None:
        """Show it, if it is time."""
        self.latest = progress
        now = time.monotonic()
        text = progress_line(progress, now - self._started, self._things)
        if self._bar:
            self._bar.show(progress, text)
        elif now - self._said >= LINE_EVERY_S or progress.seen == progress.total:
            self._said = now
            typer.echo(text)


@dataclass(frozen=True)
class _Counted:
    seen: int
    embedded: int
    total: int


@contextmanager
def counted(things: str, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Shows how many of how many ``things`` are read or written, as the caller tells; nothing (None) if ``quiet``."""
    if quiet:
        yield None
        return
    with BuildDisplay(things) as display:
        yield lambda seen, total: display(_Counted(seen, seen, total))


class _Bar:
    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.progress = Progress(BarColumn(), TextColumn("{task.description}"))
        self._task = self.progress.add_task("reading", total=None)

    def show(self, progress: BuildProgress, text: str) -> None:
        self.progress.update(self._task, completed=progress.seen, total=progress.total, description=text)


def progress_line(progress: BuildProgress, seconds: float, things: str = "passages") -> str:
    """Tell where it is, how fast it embeds, and when it will be done.

    >>> from rapo_rllib.corpus.build import BuildProgress
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

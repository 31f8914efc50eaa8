"""Messages of commands while they work, and when they end: a bar or lines, one red line for a mistake, an exit status."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import typer

from rapo_rllib.errors import RolloutError
from rapo_rllib.traces.rows import BuildProgress

if TYPE_CHECKING:
    from rapo_rllib.agents.asking import Progress

INTERRUPTED = 130  # as a shell calls a command that Ctrl-C ended
LINE_EVERY_S = 10.0


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command.

    Raises:
        typer.Exit: always.
    """
    typer.secho(message, err=True, fg="red")
    raise typer.Exit(status)


@contextmanager
def one_line_errors(stopped: str = "") -> Iterator[None]:
    """A mistake, or a service, agent or engine that fails, is one line and exit status 1.

    Args:
        stopped: said after Ctrl-C; empty: that is the caller's.
    """
    try:
        yield
    except (ValueError, RolloutError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        if not stopped:
            raise
        fail(stopped, INTERRUPTED)


class Display:
    """Shows how far something is while it is entered: a bar on a terminal, elsewhere a line now and then; then the last line.

    Args:
        line: of a progress and the seconds since the start.
    """

    def __init__(self, line: Callable[[Any, float], str]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._started = self._said = time.monotonic()
        self._bar = Progress(BarColumn(), TextColumn("{task.description}"), disable=not sys.stdout.isatty())
        self._task = self._bar.add_task("starting", total=None)
        self._line, self._text, self.done = line, "", 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
        if self._text:
            typer.echo(self._text)

    def __call__(self, progress: Progress | BuildProgress) -> None:
        """Show it, if it is time."""
        now = time.monotonic()
        self.done, self._text = progress.done, self._line(progress, now - self._started)
        self._bar.update(self._task, completed=progress.done, total=progress.total, description=self._text)
        if self._bar.disable and now - self._said >= LINE_EVERY_S:
            typer.echo(self._text)
            self._said, self._text = now, ""


def attempts_display(name: str) -> Display:
    """Show how far an agent of this name is."""
    return Display(lambda progress, _: f"{name}: {attempts_line(progress, progress.seconds)}")


@contextmanager
def resumable(things: str) -> Iterator[Display]:
    """Show progress; after Ctrl-C say that the same command continues."""
    display = Display(partial(progress_line, things=things))
    try:
        with display:
            yield display
    except KeyboardInterrupt:
        fail(f"Stopped after {display.done:,} {things}. The same command, run again, continues from there.", INTERRUPTED)


@contextmanager
def counted(things: str, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Shows how many of how many ``things`` are read or written, as the caller tells; nothing (None) if ``quiet``."""
    if quiet:
        yield None
        return
    with Display(partial(progress_line, things=things)) as display:
        yield lambda seen, total: display(BuildProgress(seen, seen, total))


def progress_line(progress: BuildProgress, seconds: float, things: str = "passages") -> str:
    """Tell where a build is, how fast it embeds, and when it will be done.

    >>> from rapo_rllib.traces.rows import BuildProgress
    >>> progress_line(BuildProgress(done=600, embedded=400, total=1200), 4.0)
    '600 of 1,200 passages · 200 were stored before · 100/s · 6 s left'
    """
    known = progress.done - progress.embedded
    rate = f"{progress.embedded / seconds:.0f}/s" if progress.embedded and seconds > 0 else ""
    parts = [f"{known:,} were stored before" if known else "", rate]
    return _line(things, progress.done, progress.total, parts, progress.embedded, seconds)


def attempts_line(progress: Progress, seconds: float) -> str:
    """Tell where an agent is, how fast it writes, and when it will be done."""
    found, failed, ended = progress.found, progress.failed, progress.ended
    rate = f"{progress.tokens / seconds:.0f} tokens/s" if ended and seconds > 0 else ""
    parts = [f"{found:,} were there before" if found else "", f"{failed:,} failed" if failed else "", rate]
    return _line("attempts", progress.done, progress.total, parts, ended, seconds)


def _line(things: str, done: int, total: int, parts: list[str], fresh: int, seconds: float) -> str:
    """Join what is known; ``fresh`` of the ``done`` things took the ``seconds``."""
    left = total - done if fresh and seconds > 0 else 0
    ahead = f"{duration(left * seconds / fresh)} left" if left else ""
    return " · ".join(filter(None, [f"{done:,} of {total:,} {things}", *parts, ahead]))


def duration(seconds: float) -> str:
    """Format seconds in words: ``80 s``, ``15 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""What commands say while they work, and when they end: a bar or lines, one red line for a mistake, an exit status."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

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
    """Shows progress while it is entered: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._started = self._said = time.monotonic()
        self._bar = Progress(BarColumn(), TextColumn("{task.description}"), disable=not sys.stdout.isatty())
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, text: str, done: int, total: int, ended: bool) -> None:
        """Show it, if it is time."""
        now = time.monotonic()
        self._bar.update(self._task, completed=done, total=total, description=text)
        if self._bar.disable and (now - self._said >= LINE_EVERY_S or ended):
            self._said = now
            typer.echo(text)


class BuildDisplay(Display):
    """Call it with every new progress.

    Args:
        things: what is counted, for people.
    """

    def __init__(self, things: str = "passages") -> None:
        super().__init__()
        self.seen = 0
        self._things = things

    def __call__(self, progress: BuildProgress) -> None:
        """Show it, if it is time."""
        self.seen = progress.seen
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


@contextmanager
def resumable(things: str) -> Iterator[BuildDisplay]:
    """Show progress; after Ctrl-C say that the same command continues."""
    display = BuildDisplay(things)
    try:
        with display:
            yield display
    except KeyboardInterrupt:
        fail(f"Stopped after {display.seen:,} {things}. The same command, run again, continues from there.", INTERRUPTED)


@contextmanager
def counted(things: str, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Shows how many of how many ``things`` are read or written, as the caller tells; nothing (None) if ``quiet``."""
    if quiet:
        yield None
        return
    with BuildDisplay(things) as display:
        yield lambda seen, total: display(BuildProgress(seen, seen, total))


def progress_line(progress: BuildProgress, seconds: float, things: str = "passages") -> str:
    """Tell where a build is, how fast it embeds, and when it will be done.

    >>> from rapo_rllib.traces.rows import BuildProgress
    >>> progress_line(BuildProgress(seen=600, embedded=400, total=1200), 4.0)
    '600 of 1,200 passages · 200 were stored before · 100/s · 6 s left'
    """
    known = progress.seen - progress.embedded
    rate = f"{progress.embedded / seconds:.0f}/s" if progress.embedded and seconds > 0 else ""
    parts = [f"{known:,} were stored before" if known else "", rate]
    return _line(things, progress.seen, progress.total, parts, progress.embedded, seconds)


def attempts_line(progress: Progress, seconds: float) -> str:
    """Tell where an agent is, how fast it writes, and when it will be done."""
    found, failed, ended = progress.found, progress.failed, progress.ended
    rate = f"{progress.tokens / seconds:.0f} tokens/s" if ended and seconds > 0 else ""
    parts = [f"{found:,} were there before" if found else "", f"{failed:,} failed" if failed else "", rate]
    return _line("attempts", found + ended, progress.total, parts, ended, seconds)


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

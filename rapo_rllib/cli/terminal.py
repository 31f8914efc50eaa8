"""Messages of commands while they work, and when they end: a bar, one red line for a mistake, an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from rapo_rllib.errors import RolloutError
from rapo_rllib.traces.rows import BuildProgress

if TYPE_CHECKING:
    from rapo_rllib.agents.asking import Progress

INTERRUPTED = 130  # exit status that a shell gives a command ended by Ctrl-C
LINE_EVERY_S = 10.0


def fail(message: str, status: int = 1) -> NoReturn:
    """Print the message in red, and end the command.

    Raises:
        typer.Exit: always.
    """
    typer.secho(message, err=True, fg="red")
    raise typer.Exit(status)


@contextmanager
def one_line_errors(stopped: str = "") -> Iterator[None]:
    """Turn a mistake, or the failure of a service, agent or engine, into one line and exit status 1.

    Args:
        stopped: message after Ctrl-C; empty: the caller handles Ctrl-C.
    """
    try:
        yield
    except (ValueError, RolloutError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        if not stopped:
            raise
        fail(stopped, INTERRUPTED)


@contextmanager
def progress_bar(things: str, name: str | None = None, of: Iterable[Any] | None = None) -> Iterator[Any]:
    """Show progress: a bar on a terminal, elsewhere a line now and then. Yields tqdm's bar, to iterate over or to advance."""
    from tqdm import tqdm

    every = 0.1 if sys.stderr.isatty() else LINE_EVERY_S
    with tqdm(of, name, unit=f" {things}", mininterval=every, maxinterval=every, disable=False) as bar:
        yield bar


def advance(bar: Any, progress: Progress | BuildProgress) -> None:
    """Move a bar to the progress of a build or an agent."""
    found, failed, pace = progress.found, getattr(progress, "failed", 0), getattr(progress, "tokens_per_s", 0.0)
    notes = [f"{pace:,.0f} tokens/s" if pace else "", f"{found:,} were there before" if found else ""]
    notes.append(f"{failed:,} failed" if failed else "")
    bar.total, bar.initial, bar.n = progress.total, found, max(bar.n, found)  # the pace is that of this run
    bar.set_postfix_str(" · ".join(filter(None, notes)), refresh=False)
    bar.update(progress.done - bar.n)


@contextmanager
def attempts_display(name: str) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of the agent with this name. Yields a function to call with its progress."""
    with progress_bar("attempts", name) as bar:
        yield lambda progress: advance(bar, progress)


@contextmanager
def resumable(things: str, command: str = "The same command") -> Iterator[Callable[[BuildProgress], None]]:
    """Show the progress of a build; after Ctrl-C say which command continues it. Yields a function for the progress."""
    with progress_bar(things) as bar:
        try:
            yield lambda progress: advance(bar, progress)
        except KeyboardInterrupt:
            bar.close()
            fail(f"Stopped after {bar.n:,} {things}. {command}, run again, continues from there.", INTERRUPTED)


def duration(seconds: float) -> str:
    """Format seconds in words: ``80 s``, ``15 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

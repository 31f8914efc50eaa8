"""The ends of a command whose work is not done: one line in red, and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from rapo_rllib.errors import RolloutError

INTERRUPTED = 130  # as a shell calls a command that Ctrl-C ended


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command.

    Raises:
        typer.Exit: always.
    """
    typer.secho(message, err=True, fg="red")
    raise typer.Exit(status)


@contextmanager
def one_line_errors(stopped: str = "") -> Iterator[None]:
    """Turn mistakes, and failures of a service, agent or engine, into one line and exit status 1.

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

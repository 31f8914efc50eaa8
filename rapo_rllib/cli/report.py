"""``rllib report``: a run, or several trials side by side, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rapo_rllib.cli.endings import fail


def report(
    run_dir: Annotated[Path, typer.Argument(help="A trial's folder, or one with trials in it.", show_default=False)],
    output: Annotated[Path | None, typer.Option(help="The page (default: report.html in RUN_DIR).")] = None,
    max_mb: Annotated[float, typer.Option(help="Megabytes of transcripts in the page; the newest come first.")] = 20.0,
) -> None:
    """Write one page with the curves of a run, a table of its trials, and a reader for its trajectories.

    Also while the run goes; for trajectories the job needs ``transcripts: true``.
    """
    from rapo_rllib.report.page import write_report

    try:
        made = write_report(run_dir, output, max_mb)
    except ValueError as error:
        fail(f"Error: {error}")
    trials = "1 trial" if made.trials == 1 else f"{made.trials} trials"
    typer.echo(f"{made.path}: {trials}, {made.groups} questions with trajectories, {made.num_bytes / 1e6:.1f} MB")

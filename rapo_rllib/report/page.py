"""The report as one HTML file that loads nothing: text, styles, scripts and data are put into ``page.html``.

Texts of models, tools and users are data: the table has them escaped, and all others are JSON, which the scripts put into the
page as text. A content security policy forbids every request, so that no text can start one.
"""

from __future__ import annotations

import html
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template

from rapo_rllib.monitoring.warnings import warnings_of
from rapo_rllib.report.comparison import Comparison, compared
from rapo_rllib.report.curves import panels, trial_curves
from rapo_rllib.report.runs import Trial, find_trials
from rapo_rllib.report.trajectories import Selection, script_json, selected

_SCRIPTS = ("elements.js", "charts.js", "reader.js", "search.js")


@dataclass(frozen=True)
class Report:
    """The page that was written."""

    path: Path
    trials: int
    groups: int  # in the reader
    num_bytes: int


def write_report(run_dir: Path, output: Path | None = None, max_mb: float = 20.0) -> Report:
    """Write the page of a run atomically, so that it can be replaced while it is read.

    Args:
        run_dir: a trial's folder, or one with trials in it.
        output: the file; None: ``report.html`` in ``run_dir``.
        max_mb: megabytes of transcripts that the page may hold, all trials together.

    Raises:
        ValueError: there is no trial, the size is not positive, or the file cannot be written.
    """
    if not max_mb > 0:
        raise ValueError(f"--max-mb {max_mb:g}: must be above 0; 20 holds some thousand trajectories")
    trials = find_trials(run_dir)
    chosen = [selected(trial, int(max_mb * 1e6 / len(trials))) for trial in trials]
    content = page(str(run_dir), trials, chosen, max_mb).encode("utf-8", "backslashreplace")
    path = (output or run_dir / "report.html").expanduser()
    _write_whole(path, content)
    return Report(path, len(trials), sum(len(selection.groups) for selection in chosen), len(content))


def _write_whole(path: Path, content: bytes) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".report-") as folder:
            whole = Path(folder, "report.html")
            whole.write_bytes(content)
            whole.replace(path)
    except OSError as error:
        raise ValueError(f"--output {path}: cannot be written ({error.strerror}); name another file") from error


def page(title: str, trials: Sequence[Trial], chosen: Sequence[Selection], max_mb: float) -> str:
    """Fill ``page.html``."""
    table = compared(trials)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = {
        "name": html.escape(Path(title).resolve().name),
        "about": f"{len(trials)} {_plural('trial', len(trials))} · made {made} · {html.escape(title)}",
        "style": _asset("report.css"),
        "warnings": _warnings(trials, table),
        "notes": _notes(trials, chosen, table, max_mb),
        "table": _table(table),
        "data": _data(trials, chosen, table),
        "scripts": "\n".join(f"<script>{_asset(name)}</script>" for name in _SCRIPTS),
    }
    return Template(_asset("page.html")).substitute(parts)


def _data(trials: Sequence[Trial], chosen: Sequence[Selection], table: Comparison) -> str:
    """Write the JSON that the scripts read. Groups are JSON texts already, since their size was measured."""
    shown = panels(trials)
    plots = [{"title": p.title, "series": p.series, "note": p.note, "stacked": p.stacked} for p in shown]
    curves = [script_json(trial_curves(trial, shown)) for trial in trials]
    runs = [
        f'{{"label":{script_json(label)},"curves":{drawn},"groups":[{",".join(picked.groups)}]}}'
        for label, drawn, picked in zip(table.labels, curves, chosen, strict=True)
    ]
    return f'{{"panels":{script_json(plots)},"trials":[{",".join(runs)}]}}'


def _table(table: Comparison) -> str:
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in ("trial", *table.columns))
    rows = "".join(
        f'<tr><th scope=row><span class="dot c{index % 8}"></span>{html.escape(label)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        + "</tr>"
        for index, (label, row) in enumerate(zip(table.labels, table.rows, strict=True))
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _warnings(trials: Sequence[Trial], table: Comparison) -> str:
    """List the warnings that the results give rise to, each with its advice."""
    items = [
        f"<li><b>{html.escape(f'{label}, from iteration {one.iteration} on: {one.text}.')}</b> {html.escape(one.advice)}</li>"
        for label, trial in zip(table.labels, trials, strict=True)
        for one in warnings_of(trial.rows, trial.config)
    ]
    return f"<ul class=warnings>{''.join(items)}</ul>" if items else ""


def _notes(trials: Sequence[Trial], chosen: Sequence[Selection], table: Comparison, max_mb: float) -> str:
    """List what the page leaves out, and why."""
    notes = []
    for label, trial, picked in zip(table.labels, trials, chosen, strict=True):
        notes += [f"{label}: {note}" for note in _trial_notes(trial, picked, max_mb)]
    return f"<ul class=notes>{''.join(f'<li>{html.escape(note)}</li>' for note in notes)}</ul>" if notes else ""


def _trial_notes(trial: Trial, picked: Selection, max_mb: float) -> list[str]:
    notes = []
    if not trial.iterations:
        notes.append("no transcripts (the job's `transcripts: true` writes them), so the reader has no trajectories of it.")
    elif picked.left_out:
        notes.append(f"the reader holds {len(picked.groups)} questions, the newest that fit (--max-mb {max_mb:g}).")
    if unreadable := trial.unreadable_lines + picked.unreadable_lines:
        notes.append(f"{unreadable} {_plural('line', unreadable)} of its files could not be read.")
    return notes


def _asset(name: str) -> str:
    return (files("rapo_rllib.report") / name).read_text(encoding="utf-8")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"

"""The page of ``rllib buffer stats --html``: one file without anything from elsewhere, light and dark, for phones too."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from rapo_rllib.buffer.statistics import BufferStats, Spread, UsedTrace
from rapo_rllib.cli.buffer.stats import overview, spreads

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 480, 230, 64, 28, 36, 16  # of a plot, in its own units
MAX_BARS = 24
MAX_TEXT = 600  # characters of a step trace

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5c667a; --page: #f6f7f9; --card: #fff; --line: #dde1e8;
  --bar: #2f6fb3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #9aa5b8; --page: #14171c; --card: #1d2128; --line: #333a46; --bar: #6aa9ec; }
}
body { margin: 0 auto; max-width: 1080px; padding: 16px; background: var(--page); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 0 0 8px; }
.grid { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); margin-bottom: 14px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px; min-width: 0; }
table { border-collapse: collapse; width: 100%; } td, th { padding: 4px 8px 4px 0; text-align: left; vertical-align: top; }
tr + tr { border-top: 1px solid var(--line); } th, .soft { color: var(--soft); font-weight: normal; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding: 4px 0 4px 12px; }
p.soft, div.soft { font-size: .9rem; margin: 6px 0 0; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 15px; }
svg rect { fill: var(--bar); } svg line { stroke: var(--line); }
pre { white-space: pre-wrap; margin: 4px 0 14px; padding-left: 10px; border-left: 3px solid var(--line); font-size: .85rem; }
"""


def write_page(found: BufferStats, path: Path) -> None:
    """Write the page. Raises ``ValueError`` where the file cannot be written."""
    try:
        path.expanduser().write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--html {path}: cannot be written ({error.strerror}); name another file") from error


def page(found: BufferStats) -> str:
    """The whole page."""
    plots = [_section(f"Steps per trajectory ({found.trajectories:,})", bars(found.steps_per_trajectory))]
    plots += [_section(_capital(name), histogram(spread) + _quantiles(spread)) for name, spread in spreads(found)]
    used = [
        _section(title, "".join(map(_used, traces)))
        for title, traces in (("Best by use", found.best), ("Worst by use", found.worst))
        if traces
    ]
    numbers = _section("In numbers", _rows(overview(found)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Step-Trace Buffer: {_text(found.where)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Step-Trace Buffer <span class=soft>{_text(found.where)}</span></h1>"
        f"<div class=grid>{numbers}{_section('Sources', _sources(found))}</div>"
        f"<div class=grid>{''.join(plots)}</div><div class=grid>{''.join(used)}</div></body></html>\n"
    )


def histogram(spread: Spread) -> str:
    """Inline SVG of a distribution."""
    ticks = {
        0: spread.edges[0],
        len(spread.counts) // 2: spread.edges[len(spread.counts) // 2],
        len(spread.counts): spread.edges[-1],
    }
    names = [
        f"{low:.4g} to {high:.4g}: {count:,}"
        for low, high, count in zip(spread.edges, spread.edges[1:], spread.counts, strict=False)
    ]
    return _plot(spread.counts, names, {place: f"{value:.4g}" for place, value in ticks.items()}, gap=1.0)


def bars(counts: Mapping[int, int]) -> str:
    """Inline SVG of counts by whole numbers; those beyond the 24th share the last bar."""
    first, last = min(counts, default=0), max(counts, default=0)
    numbers = list(range(first, min(last, first + MAX_BARS - 1) + 1))
    heights = [counts.get(number, 0) for number in numbers]
    labels = [str(number) for number in numbers]
    if last > numbers[-1]:
        heights[-1] += sum(count for number, count in counts.items() if number > numbers[-1])
        labels[-1] += "+"
    every = max(len(labels) // 8, 1)
    ticks = {place + 0.5: label for place, label in enumerate(labels) if place % every == 0}
    if labels[-1].endswith("+"):
        ticks = {place: label for place, label in ticks.items() if place + every <= len(labels)}  # its label is wide
        ticks[len(labels) - 0.5] = labels[-1]
    return _plot(heights, [f"{label}: {height:,}" for label, height in zip(labels, heights, strict=True)], ticks, gap=4.0)


def _plot(heights: Sequence[int], names: Sequence[str], ticks: Mapping[float, str], gap: float) -> str:
    top = max([*heights, 1])
    width, height = (WIDTH - LEFT - RIGHT) / max(len(heights), 1), HEIGHT - BOTTOM - TOP
    floor = HEIGHT - BOTTOM
    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>'
        for value, y in ((0, floor), (top, TOP))
    ]
    for place, (value, name) in enumerate(zip(heights, names, strict=True)):
        tall = height * value / top
        parts.append(
            f'<rect x="{LEFT + place * width + gap / 2:.1f}" y="{floor - tall:.1f}" width="{max(width - gap, 1):.1f}" '
            f'height="{tall:.1f}"><title>{_text(name)}</title></rect>'
        )
    parts += [
        f'<text x="{LEFT + place * width:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{_text(label)}</text>'
        for place, label in ticks.items()
    ]
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _quantiles(spread: Spread) -> str:
    shown = [f"mean {spread.mean:.4g}", *(f"{name} {value:.4g}" for name, value in spread.quantiles.items())]
    return f"<p class=soft>{_text(' · '.join(shown))}</p>"


def _sources(found: BufferStats) -> str:
    rows = "".join(
        f"<tr><td>{_text(name or '(none)')}</td><td class=n>{count:,}</td><td class=n>{count / found.traces:.1%}</td>"
        f"<td class=n>{found.mean_reward_by_source[name]:.3g}</td><td class=n>{found.source_weights.get(name, 1.0):g}</td></tr>"
        for name, count in found.by_source.items()
    )
    head = "".join(f"<th class=n>{name}</th>" for name in ("traces", "share", "reward", "weight"))
    return f"<table><tr><th>source</th>{head}</tr>{rows}</table>"


def _used(trace: UsedTrace) -> str:
    about = f"{trace.uses} uses, mean retrieval reward {trace.mean_reward:+.3f}, by {trace.source or 'unknown'}"
    text = trace.text if len(trace.text) <= MAX_TEXT else trace.text[:MAX_TEXT] + " …"
    return f"<div class=soft>{_text(about)}</div><pre>{_text(text.strip())}</pre>"


def _rows(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows) + "</table>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _text(value: str) -> str:
    return html.escape(value)

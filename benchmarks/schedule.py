r"""Simulated, not measured: what a schedule of rollouts and updates is worth with 8 and 64 engines, at recorded lengths.

    python benchmarks/schedule.py TRANSCRIPTS... --json benchmarks/results/schedule.json --plot docs/schedule.png \
        --page docs/rollout.md

TRANSCRIPTS are folders or files that trainings with ``transcripts: true`` wrote; their trajectories give the tokens of every
step and the seconds of every tool. A discrete-event simulation plays trainings with lengths drawn from them (times ``--times``:
recorded trajectories are short) on engines whose step takes ``base + per sequence`` seconds, a learner whose seconds are
proportional to the tokens it trains on, and a pause of all engines for new weights: their bytes over a rate. Who gets which
question, how many may be under way, and what is too old is decided by the package's own code
(``env_runner/stream/ledger.py``).

Schedules: ``fixed shares`` as before ``max_staleness`` (a batch in equal shares, all wait for the last; one step off: the next
batch beside the update), then ``max_staleness`` 0, 1, 2, 4 and 8, all with GPUs of the learner's own; and ``shared GPUs``,
where engines and learner take turns on all of them, both as much faster as these are more. Two cases: tools as recorded, and
with some of the calls slow. Nothing of the result is a measurement of a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from learning_parts.tables import written_into
from schedule_parts.engines import Speed
from schedule_parts.lengths import Drawn, Recorded, recorded
from schedule_parts.training import Figures, Job, Schedule, SimulatedTraining

SCHEDULES = (
    Schedule("on-policy, fixed shares", 0, fixed=True),
    Schedule("one step off, fixed shares", 1, fixed=True),
    Schedule("max_staleness 0", 0),
    Schedule("max_staleness 1", 1),
    Schedule("max_staleness 1, wait", 1, waits=True),
    Schedule("max_staleness 2", 2),
    Schedule("max_staleness 2, wait", 2, waits=True),
    Schedule("max_staleness 4", 4),
    Schedule("max_staleness 8", 8),
    Schedule("max_staleness 8, wait", 8, waits=True),
    Schedule("shared GPUs, max_staleness 0", 0, shared=True),
)
ON_PAGE = ("max_staleness 0", "shared GPUs, max_staleness 0", *(f"max_staleness {k}" for k in (1, 2, 4, 8)))
Table = dict[str, dict[str, Figures]]  # case -> schedule -> figures


def main() -> None:
    """Simulate all, print a table, write JSON and a picture."""
    options = parse()
    trajectories = recorded(
        file for path in options.transcripts for file in ([path] if path.is_file() else path.glob("*.jsonl"))
    )
    tables: Table = {}
    for engines in options.engines:
        for case, share in (("tools as recorded", 0.0), (f"{options.slow_share:.0%} of tool calls slow", options.slow_share)):
            title = f"{engines} engines, {case}"
            tables[title] = simulated(options, trajectories, engines, share)
            show(title, tables[title])
    if options.json:
        options.json.write_text(json.dumps(as_json(options, trajectories, tables), indent=1) + "\n")
    if options.plot:
        plot(tables, options.plot)
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        made = {
            "schedule": of_page({title: {name: asdict(one) for name, one in table.items()} for title, table in tables.items()})
        }
        options.page.write_text(written_into(text, made, {}), encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcripts", nargs="+", type=Path)
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--times", type=float, default=50.0, help="what recorded lengths are multiplied by")
    parser.add_argument("--base-ms", type=float, default=12.0, help="of an engine's step")
    parser.add_argument("--per-sequence-ms", type=float, default=0.05, help="more for each sequence")
    parser.add_argument("--capacity", type=int, default=64, help="sequences of an engine")
    parser.add_argument("--groups-per-engine", type=int, default=8, help="of an update")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--update-share", type=float, default=0.7, help="seconds of an update over those of generating it")
    parser.add_argument("--learner-gpus", type=float, default=0.5, help="over those of the engines, where each has its own")
    parser.add_argument("--weights-gb", type=float, default=15.2, help="in bfloat16: 7 billion parameters")
    parser.add_argument("--sync-gb-s", type=float, default=10.0, help="at which all engines get them, where each has its own")
    parser.add_argument("--turn-s", type=float, default=4.0, help="of an engine's sleep, waking and weights, on shared GPUs")
    parser.add_argument("--slow-share", type=float, default=0.02, help="of tool calls, in the second case")
    parser.add_argument("--slow-s", type=float, default=30.0)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--page", type=Path, help="with a place for the table: <!-- table schedule -->")
    return parser.parse_args()


def simulated(options: argparse.Namespace, trajectories: list[Recorded], engines: int, slow_share: float) -> dict[str, Figures]:
    """All schedules of one case."""
    speed = Speed(options.base_ms / 1000, options.per_sequence_ms / 1000, options.capacity)
    # a token of an update costs so much that the learner takes update_share of what full engines need to generate it
    per_token = (speed.base_s / speed.capacity + speed.per_sequence_s) / engines * options.update_share
    batch = engines * options.groups_per_engine
    apart = Job(
        engines, speed, batch, options.group_size, per_token, options.weights_gb / options.sync_gb_s, options.updates, warm_up=4
    )
    if (engines * options.learner_gpus) % 1:
        raise ValueError(f"{engines} engines and {options.learner_gpus} as many GPUs of the learner: not a whole number")
    share = options.learner_gpus / (1 + options.learner_gpus)  # of all GPUs: what the learner had, where it has all in turn
    together = replace(
        apart,
        engines=round(engines * (1 + options.learner_gpus)),
        update_s_per_token=per_token * share,
        sync_s=options.turn_s,
    )
    drawn = Drawn(trajectories, options.times, slow_share, options.slow_s, seed=0)
    return {
        schedule.name: SimulatedTraining(together if schedule.shared else apart, schedule, drawn).run()
        for schedule in SCHEDULES
    }


def show(title: str, figures: dict[str, Figures]) -> None:
    """A table of one case."""
    base = figures[SCHEDULES[0].name].updates_per_hour
    print(f"\n{title} (simulated)\n{'schedule':<28} updates/h  ratio  engines  learner  staleness  dropped")
    for name, one in figures.items():
        age = f"{one.staleness_mean:.2f} (≤ {one.staleness_max})"
        print(f"{name:<28} {one.updates_per_hour:9.1f} {one.updates_per_hour / base:6.2f} {one.engines_busy:8.0%} "
              f"{one.learner_busy:8.0%} {age:>10} {one.stale_share:8.1%}", flush=True)  # fmt: skip


def as_json(options: argparse.Namespace, trajectories: list[Recorded], tables: Table) -> dict[str, Any]:
    """Everything, with what it was made of."""
    lengths = sorted(sum(tokens for tokens, _ in steps) for steps in trajectories)
    quantiles = {f"p{q}": lengths[min(len(lengths) - 1, len(lengths) * q // 100)] for q in (1, 50, 90, 99, 100)}
    said = {key: value for key, value in vars(options).items() if key not in ("json", "plot", "transcripts")}
    cases = {title: {name: asdict(one) for name, one in figures.items()} for title, figures in tables.items()}
    return {"simulated": True, "recorded": {"trajectories": len(lengths), "tokens": quantiles}, "options": said, "cases": cases}


def of_page(cases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Write updates an hour over those of ``max_staleness`` 0 as Markdown: a row for each schedule, a column for each case."""
    rows = [["schedule", *cases], ["---"] * (len(cases) + 1)]
    for name in ON_PAGE:
        ratios = [table[name]["updates_per_hour"] / table[ON_PAGE[0]]["updates_per_hour"] for table in cases.values()]
        rows.append([name, *(f"{ratio:.2f}" for ratio in ratios)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plot(tables: Table, file: Path) -> None:
    """Updates an hour against fixed shares on-policy, a panel for each case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(tables), figsize=(4 * len(tables), 3.4), layout="constrained", sharey=True)
    for axis, (title, figures) in zip(axes, tables.items(), strict=True):
        base = figures[SCHEDULES[0].name].updates_per_hour
        ratios = [one.updates_per_hour / base for one in figures.values()]
        colors = [
            "#8f9a94" if "fixed" in name or "shared" in name else "#c9a227" if "wait" in name else "#2f5d8a" for name in figures
        ]
        bars = axis.barh(range(len(ratios)), ratios, color=colors)
        axis.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], fontsize=8, padding=2)
        axis.set_yticks(range(len(ratios)), list(figures), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"{title}\n(simulated)", fontsize=9)
        axis.set_xlabel("updates an hour, over on-policy in fixed shares", fontsize=8)
        axis.set_xlim(0, max(ratios) * 1.15)
    figure.savefig(file, dpi=130)


if __name__ == "__main__":
    sys.exit(main())

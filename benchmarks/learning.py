"""Does retrieval help? RAPO against GRPO, whole trajectories and its own ablations, paired by seed.

    python benchmarks/learning.py policies     make the base policies of the chains, and hold them against their gates
    python benchmarks/learning.py rates        choose each method's learning rate
    python benchmarks/learning.py pilot        options beside each other, with seeds that are reported nowhere else
    python benchmarks/learning.py chains       the runs that count, in the order of the plan, as far as --minutes allow
    python benchmarks/learning.py seconds      a few of them again, one at a time on an idle machine: what they cost
    python benchmarks/learning.py graded       the base policies of the second study (benchmarks/equal_traces_plan.md)
    python benchmarks/learning.py equal_rates  its learning rates
    python benchmarks/learning.py equal_traces the second study
    python benchmarks/learning.py report       raw results to benchmarks/results/summary.json and the tables of the docs
    python benchmarks/learning.py short        RAPO and GRPO, two seeds
    python benchmarks/learning.py words        SmolLM2 on word problems: base policies, learning rates, and the runs that count

What is run, and how it is judged, is in ``benchmarks/learning_plan.md``. All parts are the plugin's own: vLLM, Milvus Lite,
``RAPOConfig``. A run is a process of its own; one that has ended is not run again, so every command resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from learning_parts import equal, plan
from learning_parts.chain_run import ChainRun
from learning_parts.every_figure import all_figures
from learning_parts.pilot import pilot_figures, pilot_table
from learning_parts.plots import curves
from learning_parts.policies import base_policies
from learning_parts.processes import begin_ray, run_all
from learning_parts.rates import choose, rate_of
from learning_parts.results import PILOT, RESULTS, TIMED, collect, read, rows_of, summary
from learning_parts.tables import PAGE, PAGES, figures, tables, written_into
from learning_parts.word_policy import word_policies
from learning_parts.word_run import WordRun

SHORT = {"arms": ("rapo", "grpo"), "seeds": 2, "tokens": 20_000}


def main() -> None:
    """Run what is missing, or report what is there."""
    options = parse()
    options.folder = options.folder.absolute()
    failed = COMMANDS[options.command](options)
    for name in failed:
        print(f"{name} failed", flush=True)
    sys.exit(1 if failed else 0)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--folder", type=Path, default=Path("learning_runs"), help="rows of runs, base policies, buffers")
    parser.add_argument("--results", type=Path, default=RESULTS, help="raw results and what is made of them")
    parser.add_argument("--minutes", type=float, help="no run begins later than this")
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    return parser.parse_args()


def policies(options: argparse.Namespace) -> list[str]:
    """Make the base policies."""
    for policy in base_policies(options.results / "policies"):
        print(policy, flush=True)
    return []


def rates(options: argparse.Namespace) -> list[str]:
    """Run what the learning rates are chosen by, and choose them."""
    found = base_policies(options.results / "policies")
    folder = options.folder / "rates"
    wanted = [_chain_run(planned, lr, found, folder) for planned, lr in plan.rate_runs()]
    failed = _run(wanted, options)
    if all(rows_of(run.file) for run in wanted):
        print(json.dumps(choose(folder, options.results / "rates.json")), flush=True)
    return failed


def chains(options: argparse.Namespace) -> list[str]:
    """Run what counts, and add what has ended to the raw results."""
    found = base_policies(options.results / "policies")
    folder, rated = options.folder / "chains", options.results / "rates.json"
    there = read(options.results)
    missing = [run for run in plan.runs() if run.seed not in there.get((run.calls, run.arm), {})]
    failed = _run([_chain_run(run, rate_of(run.arm, rated), found, folder) for run in missing], options)
    print(f"{collect(folder, options.results)} runs have ended here, {len(missing)} were missing before", flush=True)
    return failed


def pilot(options: argparse.Namespace) -> list[str]:
    """Run the options that a study might be of, with seeds of their own, and print a table."""
    found, folder = base_policies(options.results / "policies"), options.folder / "pilot"
    there = read(options.results, PILOT)
    missing = [run for run in plan.pilot_runs() if run.seed not in there.get((run.calls, run.arm), {})]
    failed = _run([_chain_run(run, plan.PILOT_RATE, found, folder) for run in missing], options)
    collect(folder, options.results, PILOT)
    print(pilot_table(pilot_figures(read(options.results, PILOT))), flush=True)
    return failed


def seconds(options: argparse.Namespace) -> list[str]:
    """Time some of the runs that count, again and alone."""
    found, folder = base_policies(options.results / "policies"), options.folder / "timed"
    one = argparse.Namespace(**{**vars(options), "at_once": 1})
    wanted = [_chain_run(run, rate_of(run.arm, options.results / "rates.json"), found, folder) for run in plan.timed_runs()]
    failed = _run(wanted, one)
    collect(folder, options.results, TIMED)
    return failed


def short(options: argparse.Namespace) -> list[str]:
    """A few small runs, to see that all of it works and what it costs."""
    found = base_policies(options.results / "policies")
    folder = options.folder / "short"
    wanted = [plan.Planned(arm, seed, plan.PRIMARY) for seed in range(SHORT["seeds"]) for arm in SHORT["arms"]]
    runs = [_chain_run(planned, plan.RATES[1], found, folder) for planned in wanted]
    failed = _run([replace(run, tokens=SHORT["tokens"]) for run in runs], options)
    collect(folder, folder / "results")
    print(json.dumps(summary(read(folder / "results"), {}), indent=1), flush=True)
    return failed


def _chain_run(planned: plan.Planned, lr: float, found: list[Path], folder: Path) -> ChainRun:
    folder.mkdir(parents=True, exist_ok=True)
    policy = found[planned.seed % len(found)]
    return ChainRun(planned.arm, planned.seed, planned.calls, lr, str(policy), str(folder))


def _run(wanted: Sequence[ChainRun | WordRun], options: argparse.Namespace) -> list[str]:
    """Do the runs that have not ended yet; names of those that failed."""
    missing, failed, began = [run for run in wanted if not rows_of(run.file)], [], time.monotonic()
    print(f"{len(missing)} of {len(wanted)} runs are to be done", flush=True)
    if missing:
        begin_ray(options.at_once)
    while missing and (options.minutes is None or time.monotonic() - began < 60 * options.minutes):
        some, missing = missing[: 4 * options.at_once], missing[4 * options.at_once :]
        failed += run_all(some, options.at_once)
    return failed


def graded(options: argparse.Namespace) -> list[str]:
    """Make the base policies of the second study."""
    for policy in equal.graded_policies(options.results / equal.POLICIES.name):
        print(policy, flush=True)
    return []


def equal_rates(options: argparse.Namespace) -> list[str]:
    """Run what the learning rates of the second study are chosen by, and choose them."""
    found, folder = equal.graded_policies(options.results / equal.POLICIES.name), options.folder / "equal_rates"
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # the second time also what lies beyond the first grid
        if failed := _run(equal.rate_runs(found, folder), options):
            return failed
    if all(rows_of(run.file) for run in equal.rate_runs(found, folder)):
        print(json.dumps(equal.choose(folder, options.results / equal.CHOSEN.name)), flush=True)
    return []


def equal_traces(options: argparse.Namespace) -> list[str]:
    """Run the second study, and add what has ended to the raw results."""
    found, folder = equal.graded_policies(options.results / equal.POLICIES.name), options.folder / "equal"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = json.loads((options.results / equal.CHOSEN.name).read_text())["chosen"]
    there = read(options.results, equal.KIND)
    missing = [run for run in equal.runs(found, chosen, folder) if run.seed not in there.get((run.calls, run.arm), {})]
    failed = _run(missing, options)
    collect(folder, options.results, equal.KIND)
    print(json.dumps(equal.figures(read(options.results, equal.KIND)), indent=1), flush=True)
    return failed


def report(options: argparse.Namespace) -> list[str]:
    """Make the summary and the page's tables out of the raw results."""
    found = all_figures(options.results)
    (options.results / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for page in PAGES:
        page.write_text(written_into(page.read_text(encoding="utf-8"), tables(found), figures(found)), encoding="utf-8")
    if found["chains"]:
        curves(read(options.results), PAGE.with_name("learning_chains.png"))
    print(json.dumps(found, indent=1))
    return []


def words(options: argparse.Namespace) -> list[str]:
    """Run what counts of SmolLM2 on the word problems, and add what has ended to the raw results."""
    found = word_policies(options.folder / "word_policies", options.results / "word_habits.json")
    rated, chosen = options.folder / "word_rates", options.results / "word_rates.json"
    if not chosen.exists():
        trial = [(arm, lr, seed) for arm in plan.WORD_RATED for lr in plan.WORD_RATES for seed in plan.WORD_RATE_SEEDS]
        runs = [_word_run(arm, seed, lr, found, rated) for arm, lr, seed in trial]
        if failed := _run(runs, options):
            return failed
        if not all(rows_of(run.file) for run in runs):
            return []
        choose(rated, chosen, plan.WORD_RATED)
    folder, there = options.folder / "words", read(options.results)
    wanted = [(arm, seed) for arms in (plan.WORD_ARMS, plan.WORD_MENDS) for seed in range(plan.WORD_SEEDS) for arm in arms]
    missing = [(arm, seed) for arm, seed in wanted if seed not in there.get(("words", arm), {})]
    failed = _run([_word_run(arm, seed, rate_of(arm, chosen), found, folder) for arm, seed in missing], options)
    print(f"{collect(folder, options.results)} runs have ended here, {len(missing)} were missing before", flush=True)
    return failed


def _word_run(arm: str, seed: int, lr: float, found: list[Path], folder: Path) -> WordRun:
    folder.mkdir(parents=True, exist_ok=True)
    return WordRun(arm, seed, lr, str(found[seed % len(found)]), str(folder))


RUNS = (policies, rates, pilot, chains, seconds, words, graded, equal_rates, equal_traces, short)
COMMANDS = {command.__name__: command for command in (*RUNS, report)}

if __name__ == "__main__":
    main()

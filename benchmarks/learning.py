"""Does retrieval help? RAPO against GRPO, ARPO, trajectory-level off-policy training and its own ablations, paired by seed.

    python benchmarks/learning.py --folder runs --json learning.json --plot docs/learning.png    all methods, 5 seeds
    python benchmarks/learning.py --folder runs --short                                          RAPO and GRPO, 2 seeds
    python benchmarks/learning.py --folder runs --words 1                                        SmolLM2 on word problems

All parts are the plugin's own: vLLM, Milvus Lite, ``RAPOConfig``. The task (``learning_parts/chains.py``) needs steps that the
base policy, trained here to imitate flawed traces (``learning_parts/imitation.py``), seldom takes and the Step-Trace Buffer
shows. All runs of a seed have the same questions, base policy and budget of generated tokens. A run is a
process of its own; one that has ended is not run again, so a killed benchmark is resumed by the same command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from learning_parts.chain_run import ChainRun
from learning_parts.comparison import all_runs, compare, rows_of
from learning_parts.habits import habits
from learning_parts.imitation import Imitation, make_policy
from learning_parts.methods import METHODS, SHORT
from learning_parts.plots import curves
from learning_parts.processes import run_all
from learning_parts.word_run import METHODS as WORD_METHODS
from learning_parts.word_run import WordRun
from learning_parts.word_run import run as run_words
from rollout_parts.bench import cpu_name

TARGET = {"chains": 0.5, "words": 0.35}  # held-out accuracy whose cost is reported
SHORT_RUNS = {"seeds": 2, "tokens": 40_000}


def main() -> None:
    """Run what is missing, compare what is there, print, write."""
    options = parse()
    kind = "words" if options.words else "chains"
    folder = options.folder.absolute() / ("short" if options.short else kind)
    folder.mkdir(parents=True, exist_ok=True)
    failed = words(options, folder) if options.words else chains(options, folder)
    runs = all_runs(folder)
    figures = {"task": kind, "cpu": cpu_name(), "failed": failed, **compare(runs, TARGET[kind])}
    if kind == "chains":
        figures["base_policy"] = habits(options.folder / "base_policy")
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.plot and runs:
        curves(runs, options.plot)
    sys.exit(1 if failed else 0)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("learning_runs"), help="rows of runs, base policy, buffers")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5, help="per method")
    parser.add_argument("--tokens", type=int, default=ChainRun.tokens, help="generated in training, per run")
    parser.add_argument("--short", action="store_true", help=f"{' and '.join(SHORT)}, {SHORT_RUNS}")
    parser.add_argument("--words", type=int, default=0, help="seeds of SmolLM2 on word problems, in place of the chains")
    parser.add_argument("--at-once", type=int, default=1, help="runs on the chains beside each other; seconds mean less then")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="write the curves here (.png)")
    return parser.parse_args()


def chains(options: argparse.Namespace, folder: Path) -> list[str]:
    """All runs on the chains, method by method; names of those that failed."""
    policy = make_policy(options.folder.absolute() / "base_policy", Imitation(), len(os.sched_getaffinity(0)))
    methods, seeds, tokens = options.methods, options.seeds, options.tokens
    if options.short:
        methods, seeds, tokens = SHORT, SHORT_RUNS["seeds"], SHORT_RUNS["tokens"]
    settings = {
        "tokens": tokens,
        "lr": ChainRun.lr,
        "evaluation_interval": ChainRun.evaluation_interval,
        "imitation": asdict(Imitation()),
    }
    keep_settings(folder, settings)
    wanted = [ChainRun(method, seed, str(policy), str(folder), tokens) for method in methods for seed in range(seeds)]
    return run_all([run for run in wanted if not rows_of(run.file)], options.at_once)


def keep_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse to mix runs of different settings in one folder."""
    file = folder / "settings.json"
    if file.exists() and json.loads(file.read_text()) != settings:
        sys.exit(f"{folder} holds runs with {file.read_text()}: give another --folder, or the same settings")
    file.write_text(json.dumps(settings))


def words(options: argparse.Namespace, folder: Path) -> list[str]:
    """All runs on the word problems; names of those that failed."""
    failed = []
    for run in (WordRun(method, seed, str(folder)) for seed in range(options.words) for method in WORD_METHODS):
        if rows_of(run.file):
            continue
        try:
            run_words(run)
        except subprocess.CalledProcessError as error:
            print(f"{run.file.stem}: {error}", flush=True)
            failed.append(run.file.stem)
    return failed


if __name__ == "__main__":
    main()

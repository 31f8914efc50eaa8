"""Runs in processes of their own, forked from one that has the heavy imports behind it: they take longer than a short run."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from learning_parts.training import train

IMPORTED = (
    "vllm",
    "sentence_transformers",
    "rapo_rllib.env_runner.env_runner",
    "rapo_rllib.learner.learner",
    "learning_parts.chains",
)


def run_all(runs: Sequence[Any], at_once: int) -> list[str]:
    """Do ``runs``, ``at_once`` at a time, and say how long each took; names of those that failed."""
    threads = max(1, len(os.sched_getaffinity(0)) // at_once)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    runs = [replace(run, threads=threads) for run in runs]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    with ThreadPoolExecutor(at_once) as pool:
        codes = list(pool.map(lambda run: _run(context, run), runs))
    return [run.name for run, code in zip(runs, codes, strict=True) if code]


def begin_ray(at_once: int) -> None:
    """Begin the one Ray that all runs use, where there is none: that takes a third of a short run's seconds."""
    import ray

    if not ray.is_initialized():
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # engines in processes of their own make the environment
        ray.init(num_cpus=2 * at_once, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def _run(context: ForkServerContext, run: Any) -> int | None:
    log = run.file.with_suffix(".log")
    process = context.Process(target=_train_into, args=(run, log))
    started = time.monotonic()
    process.start()
    process.join()
    failed = f", FAILED ({process.exitcode}), see {log}" if process.exitcode else ""
    print(f"{run.name}: {time.monotonic() - started:.0f} s{failed}", flush=True)
    return process.exitcode


def _train_into(run: Any, log: Path) -> None:
    """Train with everything that is printed, by libraries in C++ too, in ``log``."""
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        train(run)

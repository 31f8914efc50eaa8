"""Runs a job as a user does and samples the memory of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path

import psutil

MARK = "RAPO_BENCHMARK_RUN"  # environment variable that all processes of a run inherit
ROLES = {
    "ray::RAPOEnvRunner": "engine",
    "ray::_WrappedExecutable": "learner",
    "ray::RAPO": "main",
    "rapo_rllib.cli.main": "command",
}


def watch(job: Path, *options: str) -> dict[str, int]:
    """Run ``rllib train file``; peak bytes by role (of the largest process of that role), and ``all`` of them together.

    Memory is the proportional set size. A child that has just been forked counts as a part of its parent.

    Raises:
        RuntimeError: the job failed.
    """
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "rapo_rllib.cli.main", "train", "file", str(job), *options]
    peaks: defaultdict[str, int] = defaultdict(int)
    known: dict[int, bool] = {}
    log = job.with_name("log.txt")
    with (
        log.open("w") as file,
        subprocess.Popen(command, cwd=job.parent, env={**os.environ, MARK: mark}, stdout=file, stderr=file) as process,
    ):
        while process.poll() is None:
            for role, size in _sizes(mark, known).items():
                peaks[role] = max(peaks[role], size)
            time.sleep(0.5)
    if process.returncode:
        raise RuntimeError(f"{job} ended with exit status {process.returncode}: {log}")
    return dict(peaks)


def _sizes(mark: str, known: dict[int, bool]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for process in psutil.process_iter():
        try:
            if process.pid not in known:
                known[process.pid] = process.environ().get(MARK) == mark
            if known[process.pid]:
                size = process.memory_full_info().pss
                found["all"] += size
                line = " ".join(process.cmdline())
                role = next((role for text, role in ROLES.items() if text in line), "others")
                found[role] = found[role] + size if role == "others" else max(found[role], size)
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or is another user's
    return found

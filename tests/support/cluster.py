"""Drills: a Ray cluster of two raylets on this machine, and a small training on it, whose lines are timed."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_runs import COMMAND, REPOSITORY, environment

START_S = 900.0  # Ray, an engine and learners, on a machine that does other things
JOB = """
from few_questions import FewLetters
from faults import FaultyLearner
from full_disk import fill_up_beside
from rapo_rllib import RAPOConfig

config = (
    RAPOConfig()
    .environment(FewLetters, env_config={{"folder": {folder!r}, "num_questions": 20}})
    .env_runners(num_env_runners={env_runners})
    .learners(num_learners={learners}, learner_class=FaultyLearner)
    .resources(custom_resources_for_main_process={main!r})
    .callbacks(on_train_result=fill_up_beside)
    .training(
        model={{"name_or_path": {model!r}, "autocast_dtype": "float32"}},
        engine={{"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "kv_cache_gib": 0.2}},
        questions_per_step=2,
        group_size=4,
        num_minibatches=1,
        max_prompt_tokens=192,
        max_response_tokens=12,
        lr=1e-4,
        learner_num_threads=1,
        **{keys!r},
    )
)
stop = {{"training_iteration": {iterations}}}
"""
CHECKPOINTS = "checkpoint_config={checkpoint_frequency: 1, num_to_keep: 2}"
ON_HEAD = {"on_head": 1}  # of the trial's process; without it, either node may have it


class TwoRaylets:
    """A head, and another node, which can be killed and replaced.

    Args:
        head: CPUs, for the trial's process and what may be beside it.
        other: CPUs.
    """

    def __init__(self, head: int = 1, other: int = 1) -> None:
        from ray.cluster_utils import Cluster

        given = {"num_cpus": head, "resources": ON_HEAD, "include_dashboard": False}
        self._cluster, self._cpus = Cluster(initialize_head=True, head_node_args=given), other
        self.add()

    @property
    def address(self) -> str:
        """Of the head, for ``--ray-address``."""
        return str(self._cluster.address)

    def add(self) -> None:
        """Let another node join."""
        self._other = self._cluster.add_node(num_cpus=self._cpus)

    def kill_other(self) -> float:
        """End the node without the trial, and all that runs on it, by ``kill -9``; returns when."""
        began = time.time()
        self._cluster.remove_node(self._other, allow_graceful=False)
        return began

    def close(self) -> None:
        """End all of it."""
        self._cluster.shutdown()


@contextmanager
def two_raylets(head: int = 1, other: int = 1) -> Iterator[TwoRaylets]:
    """Two raylets, whose workers import what lies here; their files are in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory("", "ray_", "/tmp", True) as folder:
        patch.setenv("RAY_TMPDIR", folder)  # a short path, since sockets lie there
        patch.setenv("PYTHONPATH", search_path())
        raylets = TwoRaylets(head, other)
        try:
            yield raylets
        finally:
            raylets.close()


def search_path() -> str:
    """Of a command whose trials import what lies here."""
    return os.pathsep.join([str(REPOSITORY / "tests" / "support"), environment()["PYTHONPATH"]])


def write_job(folder: Path, model: str, *, iterations: int = 4, on_head: bool = True, **values: Any) -> None:
    """Write ``folder/job.py``.

    Args:
        folder: where files ask for faults, too.
        model: folder of the policy.
        iterations: after which it ends.
        on_head: the trial's process is on the head of two raylets.
        **values: numbers of ``learners`` and ``env_runners``, other than 0; others are keys of ``training``.
    """
    processes = {name: values.pop(name, 0) for name in ("learners", "env_runners")}
    given = {"folder": str(folder), "model": model, "iterations": iterations, "main": ON_HEAD if on_head else {}, **processes}
    (folder / "job.py").write_text(JOB.format(keys={"num_hybrid": 0, **values}, **given))


class Run:
    """``rllib train file job.py`` in ``folder``, with the time of each line that it says.

    Args:
        folder: of the job and of its results.
        options: of the command.
        within: a command that this one is run by.
    """

    def __init__(self, folder: Path, *options: str, within: Sequence[str] = ()) -> None:
        self.lines: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            [*within, *COMMAND, "train", "file", "job.py", "--set", CHECKPOINTS, "--storage-path", "results", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": search_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.time(), line.rstrip()))

    @property
    def said(self) -> str:
        """All lines so far."""
        return "\n".join(line for _, line in self.lines)

    def wait_for(self, text: str, after: float = 0.0, within_s: float = START_S) -> float:
        """Wait for a line with ``text`` that is said after a time; returns when it was."""
        deadline = time.time() + within_s
        while True:
            ended = not self._reader.is_alive()
            if found := [at for at, line in self.lines if at >= after and text in line]:
                return found[0]
            assert not ended and time.time() < deadline, f"{text!r} was not said:\n{self.said[-6000:]}"
            time.sleep(0.1)

    def status(self, within_s: float = START_S) -> int:
        """Wait for its end."""
        status = self._process.wait(within_s)
        self._reader.join()
        return status

    def end(self) -> None:
        """End it, if it has not."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

"""A Ray cluster of two raylets on this machine, and a small job that trains on it with ``rllib train``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli_runs import environment

SUPPORT = Path(__file__).parent
JOB = """
from faults import FaultyLearner, FaultyLetters
from rapo_rllib import RAPOConfig

config = (
    RAPOConfig()
    .environment(FaultyLetters, env_config={{"folder": {folder!r}}})
    .resources(custom_resources_for_main_process={{"first": 1}})
    .env_runners(num_env_runners={env_runners})
    .learners(num_learners={learners}, learner_class=FaultyLearner)
    .training(
        model={{"name_or_path": {model!r}, "autocast_dtype": "float32"}},
        engine={{"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "kv_cache_gib": 0.2}},
        questions_per_step=4,
        group_size=4,
        num_hybrid=0,
        num_minibatches=1,
        max_prompt_tokens=192,
        max_response_tokens=12,
        lr=1e-4,
        learner_num_threads=1,
        transcripts=True,
    )
)
stop = {{"training_iteration": {iterations}}}
"""
CHECKPOINTS = "checkpoint_config={checkpoint_frequency: 1, num_to_keep: 2}"


class TwoRaylets:
    """A head with the resource ``first``, where the trial is, and another node, which can be killed and replaced."""

    def __init__(self, cpus: int = 1) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        head = {"num_cpus": 1, "resources": {"first": 1}, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.add()

    @property
    def address(self) -> str:
        """Of the head, for ``--ray-address``."""
        return str(self._cluster.address)

    def add(self) -> None:
        """Let another node join."""
        self._other = self._cluster.add_node(num_cpus=self._cpus)

    def kill_other(self) -> None:
        """``kill -9`` of the node without the trial, and all that runs on it."""
        self._cluster.remove_node(self._other, allow_graceful=False)

    def close(self) -> None:
        """End all of it."""
        self._cluster.shutdown()


@contextmanager
def two_raylets(cpus: int = 1) -> Iterator[TwoRaylets]:
    """Two raylets, whose workers import what lies here; their files are in a folder of their own."""
    folder = tempfile.mkdtemp(prefix="ray_", dir="/tmp")  # a short path, since sockets lie there
    changed = {"RAY_TMPDIR": folder, "PYTHONPATH": os.pathsep.join([str(SUPPORT), environment()["PYTHONPATH"]])}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        raylets = TwoRaylets(cpus)
        try:
            yield raylets
        finally:
            raylets.close()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)

"""``kill -9`` of the driver, four times, and ``--resume``: nothing differs from a run that nobody killed."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kill_job import KilledJob, at_random, compare

from rapo_rllib.checkpoint_folder import whole_checkpoints

pytestmark = pytest.mark.e2e

ITERATIONS = 5


def test_four_kills(tmp_path: Path, small_model: str) -> None:
    killed, undisturbed = (KilledJob(tmp_path / name, Path(small_model), ITERATIONS) for name in ("killed", "undisturbed"))
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(undisturbed.run_until, lambda: False)
        # ten questions, four a step: the third step begins the second epoch, and here it is not in a checkpoint yet
        assert killed.run_until(lambda: "iteration 3: sampled" in killed.log)
        assert len(whole_checkpoints(killed.trial)) == 2
        # a checkpoint is on its way to the storage
        assert killed.run_until(lambda: len(list(killed.trial.glob("checkpoint_*"))) > len(whole_checkpoints(killed.trial)))
        killed.run_until(at_random(killed, random.Random()))  # on a fast machine the run may end before
        # the last checkpoint is there, and that the trial has ended is not noted yet
        assert killed.run_until(lambda: killed.newest_iteration == ITERATIONS)
        assert not killed.run_until(lambda: False)
        other.result()
    assert list(killed.curve) == list(range(1, ITERATIONS + 1))
    assert len({question for step in killed.asked[:2] for question in step} | set(killed.asked[2][:8])) == 10
    assert compare(killed, undisturbed) == []
    assert len(list(killed.trial.glob("checkpoint_*"))) <= 3  # two are kept, and perhaps part of one

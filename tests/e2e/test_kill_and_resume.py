"""``kill -9`` of the driver, and ``--resume``: nothing differs from a run that nobody killed."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kill_job import COMMAND_LINE, KilledJob, Seen, at_random, differences
from train_here import train_here
from tunes_trial import tunes_trial

from rapo_rllib.checkpoints.folder import whole_checkpoints
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import check_experiment
from rapo_rllib.cli.train.experiments import read_experiments

pytestmark = pytest.mark.e2e

# the second step begins the second epoch
SMALL = {"num_questions": 3, "questions_per_step": 2, "max_grown": 3}


def nobody_kills(folder: Path) -> Seen:
    """The same job in this process, which needs no command for it."""
    (spec,) = read_experiments(folder / "job.py", RunOptions())
    check_experiment(spec)
    algorithm = tunes_trial(spec.config, "undisturbed")
    try:
        results = [algorithm.train() for _ in range(int(spec.stop["training_iteration"]))]
        checkpoint = Path(algorithm.save_to_path(folder / "checkpoint"))
        return Seen.of(Path(algorithm.logdir), results, checkpoint)
    finally:
        algorithm.stop()


@pytest.mark.usefixtures("ray_session")
def test_a_kill_between_a_step_and_its_checkpoint(tmp_path: Path, small_model: str) -> None:
    killed, undisturbed = (KilledJob(tmp_path / name, Path(small_model), 2, **SMALL) for name in ("killed", "undisturbed"))
    # trained and stored, with the first questions of a new epoch, and in no checkpoint
    assert killed.run_until(killed.hold(2))
    assert len(whole_checkpoints(killed.trial)) == 1
    done = train_here(killed.folder, *COMMAND_LINE)
    assert done.returncode == 0 and "continues from" in done.stdout, done.stdout + done.stderr
    summary = json.loads((killed.trial / "summary.json").read_text())
    assert summary["checkpoint"] == str(whole_checkpoints(killed.trial)[-1]) and f"\n  {summary['checkpoint']}\n" in done.stdout
    expected = nobody_kills(undisturbed.folder)
    assert [len({*step}) for step in expected.asked] == [2, 2]
    assert len({question for step in expected.asked for question in step}) == 3, "no new epoch has begun"
    assert list(killed.seen.curve) == [1, 2]
    assert differences(killed.seen, expected) == []


@pytest.mark.slow
def test_four_kills(tmp_path: Path, small_model: str) -> None:
    iterations = 5
    killed, undisturbed = (KilledJob(tmp_path / name, Path(small_model), iterations) for name in ("killed", "undisturbed"))
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(undisturbed.run_until, lambda: False)
        assert killed.run_until(killed.hold(3))
        assert len(whole_checkpoints(killed.trial)) == 2
        # a checkpoint is on its way to the storage
        assert killed.run_until(lambda: len(list(killed.trial.glob("checkpoint_*"))) > len(whole_checkpoints(killed.trial)))
        killed.run_until(at_random(killed, random.Random()))  # on a fast machine the run may end before
        # the last checkpoint is there, and that the trial has ended is not noted yet
        assert killed.run_until(lambda: killed.newest_iteration == iterations)
        assert not killed.run_until(lambda: False)
        other.result()
    seen = killed.seen
    assert list(seen.curve) == list(range(1, iterations + 1))
    assert len({question for step in seen.asked[:2] for question in step} | set(seen.asked[2][:8])) == 10
    assert differences(seen, undisturbed.seen) == []
    assert len(list(killed.trial.glob("checkpoint_*"))) <= 3  # two are kept, and perhaps part of one

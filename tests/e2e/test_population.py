"""Population based training: what an exploit clones, what it changes, and what stays apart.

By ``rllib train file``, and shorter, in this process: trials are made, changed and restored as Tune does it.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cli_runs import COMMAND, environment, rllib
from jobs import Trial, TrialHere, at
from places import SUPPORT
from ray.tune.search.variant_generator import generate_variants
from tunes_trial import tunes_trial

from rapo_rllib import RAPO
from rapo_rllib.buffer.growth import GrownTraces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import check_experiment
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.cli.train.schedulers import make_scheduler
from rapo_rllib.settings import BufferSettings

pytestmark = pytest.mark.e2e

ROOM = 200
INTERVAL, LAST = 2, 3  # one exploit, after the second iteration of three

# the trial with the higher chance of retrieval is called the better one, so that everybody knows who clones whom
SCHEDULER = {
    "type": "pbt",
    "metric": "env_runners/retrieval_prob",
    "mode": "max",
    "time_attr": "training_iteration",
    "perturbation_interval": INTERVAL,
    "quantile_fraction": 0.5,
    "resample_probability": 0.0,
    "perturbation_factors": [0.5, 0.5],
    "synch": True,
    "hyperparam_mutations": {
        "retrieval_prob": {"uniform": [0.05, 1.0]},
        "retrieval_advantage_weight": {"uniform": [0.15, 0.5]},
        "importance_shaping_weight": {"uniform": [0.0, 0.2]},
        "lr": {"loguniform": [1e-6, 1e-2]},
    },
}


def job(model: str) -> dict[str, Any]:
    config = {
        # whatever the policy writes is correct and enters its buffer, which has room for all of it
        "env_config": {"num_questions": 10, "correct_above": -1.0},
        "callbacks": "loaded_state.LoadedState",
        "model": {"name_or_path": model, "autocast_dtype": None},
        "engine": {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8, "kv_cache_gib": 0.2},
        "questions_per_step": 4,
        "group_size": 4,
        "num_hybrid": 2,
        "retrieval_prob": {"grid_search": [0.75, 1.0]},
        "retrieval_advantage_weight": 0.2,
        "importance_shaping_weight": 0.05,
        "retrieval_level": "trajectory",
        "buffer_growth": "successful",
        "step_trace_buffer": {"uri": "steps.db", "max_grown": ROOM},
        "num_minibatches": 2,
        "max_prompt_tokens": 192,
        "max_response_tokens": 32,
        "max_step_tokens": 8,
        "lr": 1e-3,
        "evaluate_before_training": False,
        "export_with_checkpoints": False,
        "num_env_runners": 0,
        "learner_num_threads": 1,  # two trials on two cores
        "num_cpus_for_main_process": 1,
    }
    checkpoints = {"checkpoint_frequency": 1, "checkpoint_at_end": False}
    stop = {"training_iteration": LAST}
    body = {"run": "RAPO", "env": "few_questions.FewLetters", "stop": stop, "checkpoint_config": checkpoints}
    return {"population": {**body, "scheduler": SCHEDULER, "config": config}}


@dataclass(frozen=True)
class Member:
    """One trial of the population."""

    trial: Trial
    loaded: dict[str, Any]  # right after it went on from a checkpoint

    @property
    def held_last(self) -> set[str]:
        """The step traces of its own in its last checkpoint."""
        state = pickle.loads((self.trial.last_checkpoint / "algorithm_state.pkl").read_bytes())
        kept = GrownTraces(max_traces=ROOM)
        kept.set_state(state["rapo"]["buffer"]["grown"])
        return set(kept.traces)

    def stored_last(self, folder: Path) -> set[str]:
        """Those in its collection, after the run."""
        settings = BufferSettings(uri=str(folder / "steps.db"), collection=self.loaded["collection"], level="trajectory")
        buffer = StepTraceBuffer(settings)
        try:
            return {trace.id for trace in buffer.all_traces()}
        finally:
            buffer.close()


@dataclass(frozen=True)
class Population:
    """The clone and the donor, the trial that began with the higher chance, in the folder of their job."""

    folder: Path
    clone: Member
    donor: Member


def by_tune(folder: Path) -> Population:
    """As a user has it."""
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), env["PYTHONPATH"]])
    command = [*COMMAND, "train", "file", "job.yaml", "--storage-path", "results", "--ray-num-cpus", "2"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL)
    (folder / "out.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = []
    for file in (folder / "results" / "population").glob("*/result.json"):
        trial = Trial(file.parent)
        trial_id = at(trial.results[0], "trial_id")
        found.append(Member(trial, json.loads((folder / f"loaded_{trial_id}.json").read_text())))
    clone, donor = sorted(found, key=lambda member: at(member.trial.results[0], "env_runners/retrieval_prob"))
    return Population(folder, clone, donor)


def in_this_process(folder: Path) -> Population:
    """One trial after the other."""
    (spec,) = read_experiments(folder / "job.yaml", RunOptions())
    check_experiment(spec)
    configs = dict(zip(("clone", "donor"), (config for _, config in generate_variants(spec.config)), strict=True))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}

    @contextmanager
    def process_of(name: str) -> Iterator[RAPO]:
        algorithm = tunes_trial(configs[name], name)
        try:
            yield algorithm
        finally:
            algorithm.stop()

    def train(name: str, algorithm: RAPO, iterations: int) -> str:
        """Returns the last checkpoint."""
        results[name] += [algorithm.train() for _ in range(iterations)]
        return algorithm.save_to_path(folder / name / f"checkpoint_{len(results[name]):06d}")

    with process_of("clone") as algorithm:
        train("clone", algorithm, INTERVAL)
    with process_of("donor") as algorithm:
        better = train("donor", algorithm, INTERVAL)
        algorithm.restore(better)
        train("donor", algorithm, LAST - INTERVAL)
    configs["clone"], _ = make_scheduler(spec.scheduler)._get_new_config(None, SimpleNamespace(config=configs["donor"]))
    with process_of("clone") as algorithm:
        algorithm.restore(better)
        train("clone", algorithm, LAST - INTERVAL)
    loaded = {name: json.loads((folder / f"loaded_{name}.json").read_text()) for name in configs}
    members = {name: Member(TrialHere(folder / name, results[name]), loaded[name]) for name in configs}
    return Population(folder, **members)


@pytest.fixture(scope="module", params=[in_this_process, pytest.param(by_tune, marks=pytest.mark.slow)])
def population(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_model: str, ray_session: None
) -> Iterator[Population]:
    folder = tmp_path_factory.mktemp("population")
    (folder / "job.yaml").write_text(yaml.safe_dump(job(small_model)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield request.param(folder)


def test_an_exploit_clones_weights_optimiser_and_buffer(population: Population) -> None:
    clone, donor = population.clone.loaded, population.donor.loaded
    assert clone["collection"] != donor["collection"]
    assert donor["stored"]
    assert set(donor["stored"]) == set(donor["held"])
    for part in ("iteration", "stored", "held", "weights", "moments", "cursor"):
        assert clone[part] == donor[part], part
    assert clone["iteration"] == INTERVAL


def test_the_perturbed_values_are_in_force_and_not_those_of_the_checkpoint(population: Population) -> None:
    clone, donor = population.clone, population.donor
    # the donor's halved; the weight's range ends at 0.15
    values = ("retrieval_prob", "lr", "retrieval_advantage_weight", "importance_shaping_weight")
    assert [clone.loaded[key] for key in values] == pytest.approx([0.5, 5e-4, 0.15, 0.025])
    assert [donor.loaded[key] for key in values] == pytest.approx([1.0, 1e-3, 0.2, 0.05])
    for member, begun, after in ((clone, 0.75, 0.5), (donor, 1.0, 1.0)):
        chances = [at(result, "env_runners/retrieval_prob") for result in member.trial.results]
        assert chances == pytest.approx([begun] * INTERVAL + [after] * (LAST - INTERVAL))


def test_after_it_each_goes_its_own_way(population: Population) -> None:
    clone, donor = population.clone, population.donor
    for member in (clone, donor):
        assert member.stored_last(population.folder) == member.held_last
        assert member.held_last > set(member.loaded["held"])
    # where the donor retrieved and the clone did not, they went on from different texts
    assert clone.held_last - donor.held_last
    assert donor.held_last - clone.held_last


@pytest.mark.slow  # in short: tests/cli/test_progress.py, tests/report/test_report_runs.py
@pytest.mark.parametrize("population", [by_tune], indirect=True)
def test_the_terminal_and_the_report_tell_of_it(population: Population) -> None:
    said = (population.folder / "out.txt").read_text()
    assert said.count("] continues from a better trial's checkpoint with ") == 1
    assert said.count("] continues\n") == 1  # the donor
    assert "retrieval_prob=0.5000" in said
    done = rllib(population.folder, "report", "results/population")
    assert done.returncode == 0, done.stderr
    page = (population.folder / "results" / "population" / "report.html").read_text()
    assert '"Settings that changed"' in page

"""Population based training by ``rllib train file``: what an exploit clones, what it changes, and what stays apart."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import COMMAND, environment, rllib
from jobs import Trial, at

from rapo_rllib.buffer.growth import GrownTraces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings

pytestmark = pytest.mark.e2e

TESTS = Path(__file__).resolve().parents[1]
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
        kept = GrownTraces(max_traces=ROOM, half_life=100.0)
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_model: str) -> Path:
    folder = tmp_path_factory.mktemp("population")
    (folder / "job.yaml").write_text(yaml.safe_dump(job(small_model)))
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(TESTS), env["PYTHONPATH"]])
    command = [*COMMAND, "train", "file", "job.yaml", "--storage-path", "results", "--ray-num-cpus", "2"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL)
    (folder / "out.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def members(folder: Path) -> tuple[Member, Member]:
    """The clone, and the donor: the trial that began with the higher chance."""
    found = []
    for file in (folder / "results" / "population").glob("*/result.json"):
        trial = Trial(file.parent)
        trial_id = at(trial.results[0], "trial_id")
        found.append(Member(trial, json.loads((folder / f"loaded_{trial_id}.json").read_text())))
    clone, donor = sorted(found, key=lambda member: at(member.trial.results[0], "env_runners/retrieval_prob"))
    return clone, donor


def test_an_exploit_clones_weights_optimiser_and_buffer(members: tuple[Member, Member]) -> None:
    clone, donor = (member.loaded for member in members)
    assert clone["collection"] != donor["collection"]
    assert donor["stored"]
    assert set(donor["stored"]) == set(donor["held"])
    for part in ("iteration", "stored", "held", "weights", "moments", "cursor"):
        assert clone[part] == donor[part], part
    assert clone["iteration"] == INTERVAL


def test_the_perturbed_values_are_in_force_and_not_those_of_the_checkpoint(members: tuple[Member, Member]) -> None:
    clone, donor = members
    # the donor's halved; the weight's range ends at 0.15
    values = ("retrieval_prob", "lr", "retrieval_advantage_weight", "importance_shaping_weight")
    assert [clone.loaded[key] for key in values] == pytest.approx([0.5, 5e-4, 0.15, 0.025])
    assert [donor.loaded[key] for key in values] == pytest.approx([1.0, 1e-3, 0.2, 0.05])
    for member, begun, after in ((clone, 0.75, 0.5), (donor, 1.0, 1.0)):
        chances = [at(result, "env_runners/retrieval_prob") for result in member.trial.results]
        assert chances == pytest.approx([begun] * INTERVAL + [after] * (LAST - INTERVAL))


def test_after_it_each_goes_its_own_way(folder: Path, members: tuple[Member, Member]) -> None:
    clone, donor = members
    for member in members:
        assert member.stored_last(folder) == member.held_last
        assert member.held_last > set(member.loaded["held"])
    # where the donor retrieved and the clone did not, they went on from different texts
    assert clone.held_last - donor.held_last
    assert donor.held_last - clone.held_last


def test_the_terminal_and_the_report_tell_of_it(folder: Path, members: tuple[Member, Member]) -> None:
    said = (folder / "out.txt").read_text()
    assert said.count("] goes on from a better trial's checkpoint with ") == 1
    assert said.count("] goes on\n") == 1  # the donor
    assert "retrieval_prob=0.5000" in said
    done = rllib(folder, "report", "results/population")
    assert done.returncode == 0, done.stderr
    page = (folder / "results" / "population" / "report.html").read_text()
    assert '"Settings that changed"' in page

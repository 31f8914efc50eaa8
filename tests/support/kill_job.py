"""A job that is killed and resumed: a tiny random model, few questions, a checkpoint per iteration. Usable as a script:

python tests/support/kill_job.py --kills 10    kills the driver ten times at random moments, and compares with an unkilled run
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cli_runs import COMMAND, environment
from small_model import save_small_model

from rapo_rllib.checkpoints.folder import MANIFEST, whole_checkpoints
from rapo_rllib.models.loading import resolve_model

JOB = """
from few_questions import FewLetters
from held_step import hold
from rapo_rllib import RAPOConfig

config = (
    RAPOConfig()
    .environment(FewLetters, env_config={{"num_questions": {num_questions}}})
    .env_runners(num_env_runners=0)
    .callbacks(on_train_result=hold)
    .debugging(seed=3)
    .training(
        model={{"name_or_path": {model!r}, "autocast_dtype": None}},
        engine={{
            "dtype": "float32",
            "enforce_eager": True,
            # alone and without a prefix cache: which sequences meet in a batch, and what is cached, is a matter of time,
            # and both move the last bits of logprobs
            "max_num_seqs": 1,
            "extra": {{"enable_prefix_caching": False}},
            "kv_cache_gib": 0.2,
        }},
        questions_per_step={questions_per_step},
        group_size=4,
        num_hybrid=2,
        retrieval_level="trajectory",
        step_trace_buffer={{"uri": {uri!r}, "max_grown": {max_grown}}},
        buffer_growth="successful",
        num_minibatches=2,
        max_prompt_tokens=192,
        max_response_tokens=32,
        max_step_tokens=8,
        lr=[[0, 1e-3], [400, 1e-4]],
        off_policy_trajectories=1,
        off_policy_source="replay",
        transcripts=True,
        learner_num_threads=1,
    )
)
stop = {{"training_iteration": {iterations}}}
"""

# the third step begins the second epoch, and what the policy wrote is more than its buffer keeps
SIZES = {"num_questions": 10, "questions_per_step": 4, "max_grown": 12}
CHECKPOINTS = "checkpoint_config={checkpoint_frequency: 1, num_to_keep: 2}"
COMMAND_LINE = ("file", "job.py", "--set", CHECKPOINTS, "--resume")


class KilledJob:
    """One run in ``folder``, which goes on however often it is killed.

    Args:
        folder: of the job, its results and its buffer.
        model: folder of the policy.
        iterations: after which it ends.
        **sizes: in place of those of ``SIZES``.
    """

    def __init__(self, folder: Path, model: Path, iterations: int, **sizes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        values = {"uri": str(folder / "steps.db"), "model": str(model), "iterations": iterations, **SIZES, **sizes}
        (folder / "job.py").write_text(JOB.format(**values))
        self._log = (folder / "log.txt").open("ab")

    def start(self) -> subprocess.Popen[bytes]:
        """``rllib train`` with ``COMMAND_LINE``, as the leader of a process group."""
        tests = str(Path(__file__).parent)
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([tests, env["PYTHONPATH"]])
        return subprocess.Popen(
            [*COMMAND, "train", *COMMAND_LINE, "--storage-path", "results"],
            cwd=self.folder,
            env=env,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def hold(self, iteration: int) -> Callable[[], bool]:
        """The next process that has done this iteration waits before its checkpoint; whether it does."""
        (self.folder / f"hold_{iteration}").touch()
        return (self.folder / f"held_{iteration}").exists

    def run_until(self, condition: Callable[[], bool]) -> bool:
        """Start, and ``kill -9`` the driver once ``condition`` holds; False: the run ended by itself before."""
        process = self.start()
        while process.poll() is None:
            if condition():
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.02)
        assert process.returncode == 0, self.log[-4000:]
        return False

    @property
    def log(self) -> str:
        """What all its processes said."""
        return (self.folder / "log.txt").read_text(errors="replace")

    @property
    def progress(self) -> str:
        """What was said last about an iteration or a checkpoint."""
        said = [line for line in self.log.splitlines() if " iteration " in line or "] checkpoint " in line]
        return said[-1][-120:] if said else "nothing trained yet"

    @property
    def trial(self) -> Path:
        """The folder of its only trial."""
        (found,) = (path for path in (self.folder / "results/job").iterdir() if path.is_dir() and path.name.startswith("RAPO"))
        return found

    @property
    def newest_iteration(self) -> int:
        """After which its furthest complete checkpoint was written; 0 before the first."""
        if not (self.folder / "results/job").is_dir() or not (found := whole_checkpoints(self.trial)):
            return 0
        iteration: int = json.loads((found[-1] / MANIFEST).read_text())["iteration"]
        return iteration

    @property
    def seen(self) -> Seen:
        """What it has done so far."""
        lines = (self.trial / "result.json").read_text().splitlines()
        return Seen.of(self.trial, map(json.loads, lines), whole_checkpoints(self.trial)[-1])


@dataclass(frozen=True)
class Seen:
    """What two runs that should be the same are compared by."""

    asked: list[list[str]]  # question ids of every iteration, in order, as often as there are trajectories
    curve: dict[int, tuple[float, float]]  # loss and mean reward by iteration; of one that was done twice, the second
    state: dict[str, Any]  # of the last checkpoint: tensors and counts of the learner, and the algorithm's own

    @classmethod
    def of(cls, trial: Path, results: Iterable[dict[str, Any]], checkpoint: Path) -> Seen:
        """Of a trial's folder."""
        files = sorted((trial / "transcripts").glob("*.jsonl"))
        asked = [[json.loads(line)["question_id"] for line in file.read_text().splitlines()] for file in files]
        curve = {
            result["training_iteration"]: (
                float(result["learners"]["default_policy"]["total_loss"]),
                float(result["env_runners"]["episode_return_mean"]),
            )
            for result in results
        }
        return cls(asked, curve, _state(checkpoint))


def _state(checkpoint: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.TemporaryDirectory() as folder:
        dcp_to_torch_save(checkpoint / "training_state", Path(folder) / "state.pt")
        learner = torch.load(Path(folder) / "state.pt", weights_only=False)
    own = pickle.loads((checkpoint / "algorithm_state.pkl").read_bytes())
    return {"learner": learner, **{part: own["rapo"][part] for part in ("cursor", "off_policy", "buffer")}}


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where ``a`` and ``b`` are not exactly the same."""
    if is_dataclass(a):
        return differences(vars(a), vars(b), path)
    if isinstance(a, dict):
        return [d for key in a.keys() | b.keys() for d in differences(a.get(key), b.get(key), f"{path}/{key}")]
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    if isinstance(a, np.ndarray):
        return [] if np.array_equal(a, b) else [path]
    if isinstance(a, (list, tuple)):
        found = [] if len(a) == len(b) else [path]
        return found + [d for i, (x, y) in enumerate(zip(a, b, strict=False)) for d in differences(x, y, f"{path}/{i}")]
    return [] if a == b or (a != a and b != b) else [f"{path}: {a!r} != {b!r}"]


def at_random(job: KilledJob, rng: random.Random) -> Callable[[], bool]:
    """A moment between start and first iteration, one time in four; else within some seconds after the first iteration."""
    log = len(job.log)
    waits_for = "" if rng.random() < 0.25 else "updating"
    seconds = rng.uniform(0.0, 5.0) if waits_for else rng.uniform(0.0, 30.0)
    begun: list[float] = []

    def now() -> bool:
        if not begun and waits_for in job.log[log:]:
            begun.append(time.monotonic())
        return bool(begun) and time.monotonic() > begun[0] + seconds

    return now


def main() -> int:
    """Kill at random moments; exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="kill_job_"))
    print(f"seed {seed}, in {folder}", flush=True)
    save_small_model(folder / "model", Path(resolve_model("smollm2-135m-instruct")))
    undisturbed = KilledJob(folder / "undisturbed", folder / "model", options.iterations)
    undisturbed.run_until(lambda: False)
    killed, kills = KilledJob(folder / "killed", folder / "model", options.iterations), 0
    while killed.run_until(at_random(killed, rng) if kills < options.kills else lambda: False):
        kills += 1
        print(f"kill {kills}: {killed.progress}", flush=True)
    found = differences(killed.seen, undisturbed.seen)
    print(f"{kills} kills; {len(found)} differences", *found[:20], sep="\n")
    return 1 if found or kills < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())

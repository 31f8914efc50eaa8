"""A job that is killed and resumed: a tiny random model, few questions, a checkpoint per iteration. Usable as a script:

python tests/kill_job.py --kills 10    kills the driver ten times at random moments, and compares with a run that nobody killed
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
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cli_runs import COMMAND, environment
from small_model import save_small_model

from rapo_rllib.checkpoint_folder import MANIFEST, whole_checkpoints
from rapo_rllib.models import resolve_model

JOB = """
from few_questions import FewLetters
from rapo_rllib import RAPOConfig

config = (
    RAPOConfig()
    .environment(FewLetters, env_config={{"num_questions": {num_questions}}})
    .env_runners(num_env_runners=0)
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
        questions_per_step=4,
        group_size=4,
        num_hybrid=2,
        retrieval_level="trajectory",
        step_trace_buffer={{"uri": "steps.db", "max_grown": 12}},
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


class KilledJob:
    """One run in ``folder``, which goes on however often it is killed."""

    def __init__(self, folder: Path, model: Path, iterations: int, num_questions: int = 10) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        job = JOB.format(model=str(model), iterations=iterations, num_questions=num_questions)
        (folder / "job.py").write_text(job)
        self._log = (folder / "log.txt").open("ab")

    def start(self) -> subprocess.Popen[bytes]:
        """``rllib train file job.py --resume``, as the leader of a process group."""
        tests = str(Path(__file__).parent)
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([tests, env["PYTHONPATH"]])
        options = ["--checkpoint-freq", "1", "--keep-checkpoints-num", "2", "--storage-path", "results", "--resume"]
        return subprocess.Popen(
            [*COMMAND, "train", "file", "job.py", *options],
            cwd=self.folder,
            env=env,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run_until(self, condition: Callable[[], bool]) -> bool:
        """Start, and ``kill -9`` the driver once ``condition`` holds; False: the run ended by itself before."""
        process = self.start()
        while process.poll() is None:
            if condition():
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.01)
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
    def asked(self) -> list[list[str]]:
        """Question ids of every iteration, in order, as often as there are trajectories."""
        files = sorted((self.trial / "transcripts").glob("*.jsonl"))
        return [[json.loads(line)["question_id"] for line in file.read_text().splitlines()] for file in files]

    @property
    def curve(self) -> dict[int, tuple[float, float]]:
        """Loss and mean reward by iteration; of one that was done twice, the second."""
        found = {}
        for line in (self.trial / "result.json").read_text().splitlines():
            result = json.loads(line)
            loss = result["learners"]["default_policy"]["total_loss"]
            found[result["training_iteration"]] = (loss, result["env_runners"]["episode_return_mean"])
        return found

    @property
    def state(self) -> dict[str, Any]:
        """What its last checkpoint holds: tensors and counts of the learner, and the algorithm's own."""
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        last = whole_checkpoints(self.trial)[-1]
        dcp_to_torch_save(last / "training_state", self.folder / "state.pt")
        learner = torch.load(self.folder / "state.pt", weights_only=False)
        own = pickle.loads((last / "algorithm_state.pkl").read_bytes())
        return {"learner": learner, **{part: own["rapo"][part] for part in ("cursor", "off_policy", "buffer")}}


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    if is_dataclass(a):
        return _differences(vars(a), vars(b), path)
    if isinstance(a, dict):
        return [d for key in a.keys() | b.keys() for d in _differences(a.get(key), b.get(key), f"{path}/{key}")]
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    if isinstance(a, np.ndarray):
        return [] if np.array_equal(a, b) else [path]
    if isinstance(a, (list, tuple)):
        found = [] if len(a) == len(b) else [path]
        return found + [d for i, (x, y) in enumerate(zip(a, b, strict=False)) for d in _differences(x, y, f"{path}/{i}")]
    return [] if a == b or (a != a and b != b) else [f"{path}: {a!r} != {b!r}"]


def compare(killed: KilledJob, undisturbed: KilledJob) -> list[str]:
    """What differs between two runs that should be the same: questions, loss curve, learner, cursor, replay store, buffer."""
    found = _differences(killed.asked, undisturbed.asked, "asked")
    return found + _differences(killed.curve, undisturbed.curve, "curve") + _differences(killed.state, undisturbed.state)


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
    differences = compare(killed, undisturbed)
    print(f"{kills} kills; {len(differences)} differences", *differences[:20], sep="\n")
    return 1 if differences or kills < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())

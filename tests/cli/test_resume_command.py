"""``rllib train file JOB --resume`` after Ctrl-C, with real Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from cli_runs import COMMAND, SMALL_PPO, environment, rllib

END = 8
ARGUMENTS = ["train", "file", "job.yaml", "--storage-path", "results", "--ray-num-cpus", "1", "--resume"]

SLOW_ENV = """
import time
from gymnasium.envs.classic_control import CartPoleEnv

class Slow(CartPoleEnv):  # gives time for Ctrl-C
    def __init__(self, env_config):
        super().__init__()

    def reset(self, **kwargs):
        time.sleep(0.1)
        return super().reset(**kwargs)
"""


def iterations(folder: Path) -> dict[str, list[int]]:
    """Those in every trial's results, by the trial's number."""
    files = folder.glob("results/job/PPO*/result.json")
    found = {file.parent.name.split("_")[3]: file.read_text().splitlines() for file in files}
    return {name: [json.loads(line)["training_iteration"] for line in lines] for name, lines in found.items()}


def interrupted(folder: Path) -> str:
    """Start the job, or go on with it, and press Ctrl-C after one more iteration; what it said."""
    with (folder / "said.txt").open("w") as out:
        process = subprocess.Popen(
            [*COMMAND, *ARGUMENTS],
            cwd=folder,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    end = time.monotonic() + 120
    while "] iteration " not in (said := (folder / "said.txt").read_text()):
        assert process.poll() is None and time.monotonic() < end, said
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    status = process.wait(timeout=60)
    said = (folder / "said.txt").read_text()
    assert status == 0, said
    return said


def test_ctrl_c_twice(tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    config = f"{{{SMALL_PPO}, lr: {{grid_search: [1e-3, 1e-4]}}}}"
    job = f"run: PPO, env: slow_env.Slow, stop: {{training_iteration: {END}}}, config: {config}"
    (tmp_path / "job.yaml").write_text(f"job: {{{job}}}\n")
    said = interrupted(tmp_path)  # one CPU: the second trial of the grid waits
    assert "Your training was interrupted. The same command with --resume goes on with it." in said
    first = iterations(tmp_path)
    assert first.keys() == {"00000"} and len(first["00000"]) < END
    assert "goes on from" in interrupted(tmp_path)
    second = iterations(tmp_path)
    assert len(first["00000"]) < len(second["00000"]) < END
    done = rllib(tmp_path, *ARGUMENTS[:3], *ARGUMENTS[5:])
    assert "Your training finished." in done.stdout, done.stdout + done.stderr
    assert iterations(tmp_path) == {trial: list(range(1, END + 1)) for trial in ("00000", "00001")}

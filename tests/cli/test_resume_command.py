"""``rllib train file JOB --resume`` after the time budget and after Ctrl-C, with real Ray."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from cli_runs import SMALL_PPO, rllib, started, wait_for_text

END = 8
COMMAND_LINE = ("train", "file", "job.yaml", "--ray-num-cpus", "1", "--resume")

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


def write_job(folder: Path, more: str = "") -> None:
    config = f"{{{SMALL_PPO}, lr: {{grid_search: [1e-3, 1e-4]}}}}"
    job = f"run: PPO, env: slow_env.Slow, stop: {{training_iteration: {END}}}, config: {config}"
    (folder / "job.yaml").write_text(f"job: {{{job}{more}}}\n")


def test_a_time_budget_then_ctrl_c_then_the_end(tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    write_job(tmp_path, ", time_budget_s: 1")
    done = rllib(tmp_path, *COMMAND_LINE)
    assert "The time budget of job is spent. The same command with --resume goes on with it." in done.stdout, done.stderr
    assert iterations(tmp_path) == {}  # it is spent while the first trial is set up

    write_job(tmp_path)  # on one CPU the second trial of the grid waits for the first
    said = tmp_path / "said.txt"
    process = started(tmp_path, said, *COMMAND_LINE, "--storage-path", "results")
    wait_for_text(said, "] iteration ", process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=60) == 0, said.read_text()
    assert "Your training was interrupted. The same command with --resume goes on with it." in said.read_text()
    found = iterations(tmp_path)
    assert len(found) == 1 and all(len(done) < END for done in found.values())

    done = rllib(tmp_path, *COMMAND_LINE)
    assert "goes on from" in done.stdout
    assert "Your training finished." in done.stdout, done.stdout + done.stderr
    assert iterations(tmp_path) == {trial: list(range(1, END + 1)) for trial in ("00000", "00001")}

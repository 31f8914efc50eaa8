"""``rllib train file JOB --resume`` after the time budget and after Ctrl-C, with real Ray."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from cli_runs import SMALL_PPO, checkpoints, rllib, started, wait_for_text

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


def iterations(folder: Path, name: str) -> dict[str, list[int]]:
    """Those in the results of every trial of an experiment, by the trial's number."""
    files = folder.glob(f"results/{name}/PPO*/result.json")
    found = {file.parent.name.split("_")[3]: file.read_text().splitlines() for file in files}
    return {number: [json.loads(line)["training_iteration"] for line in lines] for number, lines in found.items()}


def experiment(name: str, stop: int, config: str = "", more: str = "") -> str:
    body = f"run: PPO, env: slow_env.Slow, stop: {{training_iteration: {stop}}}, config: {{{SMALL_PPO}{config}}}"
    return f"{name}: {{{body}{more}}}\n"


def test_a_time_budget_and_ctrl_c_and_then_the_end(tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    # on one CPU the second trial of the grid waits for the first, and must not start any more after Ctrl-C
    pair = experiment("pair", END, ", lr: {grid_search: [1e-3, 1e-4]}", ", checkpoint_config: {checkpoint_at_end: false}")
    spent = experiment("spent", 2, more=", time_budget_s: 1")  # is over while the trial is set up
    (tmp_path / "job.yaml").write_text(spent + pair + experiment("never", 1))
    said = tmp_path / "said.txt"
    process = started(tmp_path, said, *COMMAND_LINE, "--storage-path", "results")
    try:
        wait_for_text(said, "] iteration 2 · ", process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too
        status = process.wait(timeout=120)
    finally:
        process.kill()
    text = said.read_text()
    assert status == 0 and "Traceback" not in text, text
    assert "The time budget of spent is spent. The same command with --resume goes on with it." in text
    assert "Stopping after the running iteration" in text
    assert "Your training was interrupted. The same command with --resume goes on with it." in text
    (found,) = iterations(tmp_path, "pair").values()
    assert len(found) < END and len(checkpoints(tmp_path)) == 1
    assert iterations(tmp_path, "spent") == {} and not (tmp_path / "results" / "never").exists()

    (tmp_path / "job.yaml").write_text(experiment("spent", 2) + pair)
    done = rllib(tmp_path, *COMMAND_LINE)
    assert "goes on from" in done.stdout
    assert "Your training finished." in done.stdout, done.stdout + done.stderr
    # no iteration is there twice: the checkpoint was that of the last one
    assert iterations(tmp_path, "pair") == {trial: list(range(1, END + 1)) for trial in ("00000", "00001")}
    assert iterations(tmp_path, "spent") == {"00000": [1, 2]}

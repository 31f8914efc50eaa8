"""``rllib train file JOB --resume`` after Ctrl-C, with real Ray."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from cli_runs import SMALL_PPO, checkpoints, started, wait_for_text
from places import SUPPORT
from train_here import train_here

END = 8
COMMAND_LINE = ("file", "job.yaml", "--ray-num-cpus", "1", "--resume")


def iterations(folder: Path, name: str) -> dict[str, list[int]]:
    """Those in the results of every trial of an experiment, by the trial's number."""
    files = folder.glob(f"results/{name}/*/result.json")
    lines = {file.parent.name: file.read_text().splitlines() for file in files}
    return {
        number: [json.loads(line)["training_iteration"] for line in lines[trial]]
        for trial in lines
        for number in re.findall(r"_[0-9a-f]{5}_(\d{5})", trial)  # the trial's name begins with the run's
    }


def experiment(name: str, stop: int, config: str = "", more: str = "") -> str:
    body = f"run: PPO, env: slow_env.Slow, stop: {{training_iteration: {stop}}}, config: {{{SMALL_PPO}{config}}}"
    return f"{name}: {{{body}{more}}}\n"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ctrl_c_and_then_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)  # where slow_env.py lies
    # on one CPU the second trial of the grid waits for the first, and must not start any more after Ctrl-C
    pair = experiment("pair", END, ", lr: {grid_search: [1e-3, 1e-4]}", ", checkpoint_config: {checkpoint_at_end: false}")
    (tmp_path / "job.yaml").write_text(pair + experiment("never", 1))
    said = tmp_path / "said.txt"
    process = started(tmp_path, said, "train", *COMMAND_LINE, "--storage-path", "results")
    try:
        wait_for_text(said, "] iteration 2 · ", process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too
        status = process.wait(timeout=120)
    finally:
        process.kill()
    text = said.read_text()
    assert status == 0 and "Traceback" not in text, text
    assert "Stopping after the running iteration" in text
    assert "Your training was interrupted. The same command with --resume continues it." in text
    (found,) = iterations(tmp_path, "pair").values()
    assert len(found) < END and len(checkpoints(tmp_path)) == 1
    assert not (tmp_path / "results" / "never").exists()

    (tmp_path / "job.yaml").write_text(pair)
    done = train_here(tmp_path, *COMMAND_LINE)
    assert "continues from" in done.stdout
    assert "Your training finished." in done.stdout, done.stdout + done.stderr
    # no iteration is there twice: the checkpoint was that of the last one
    assert iterations(tmp_path, "pair") == {trial: list(range(1, END + 1)) for trial in ("00000", "00001")}

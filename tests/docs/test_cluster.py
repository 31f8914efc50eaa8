"""The cluster of docs/install.md: its commands, in order, are a cluster that trains."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import COMMAND, SMALL_PPO, environment
from pages import commands

# `ray stop` ends every Ray that it sees, and two clusters want the same ports: this one has processes and loopback of its own
ALONE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--net"]
LOOPBACK = """
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
"""
FOR_CLUSTERS = {"ray", "export", "--ray-address"}  # one of these is in each command about a cluster
PROGRAMS = {"rllib": COMMAND, "ray": [sys.executable, "-m", "ray.scripts.scripts"]}
SMALLER = {"--head": ["--num-cpus=1", "--include-dashboard=false"], "--address=127.0.0.1:6379": ["--num-cpus=1"]}


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its sessions: a short path, since sockets lie there."""
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def command_line(words: list[str], results: Path) -> str:
    """A command of the page with what is on this machine in place of the page's addresses, programs and folder."""
    here = [word.replace("10.0.0.1", "127.0.0.1").replace("/shared/results", str(results)) for word in words]
    more = [option for word in here for option in SMALLER.get(word, [])]
    return shlex.join([*PROGRAMS.get(here[0], here[:1]), *here[1:], *more])


@pytest.mark.slow
def test_the_commands_make_a_cluster_train_on_it_and_end_it(tmp_path: Path, ray_folder: Path) -> None:
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no namespaces to be alone in")
    of_page = [words for page, words in commands() if page == "docs/install.md" and FOR_CLUSTERS & set(words)]
    assert {"ray start", "rllib train", "ray stop"} <= {" ".join(words[:2]) for words in of_page}
    body = f"run: PPO, env: CartPole-v1, stop: {{training_iteration: 1}}, config: {{{SMALL_PPO}, num_env_runners: 1}}"
    (tmp_path / "job.yaml").write_text(f"small: {{{body}}}\n".replace("num_env_runners: 0, ", ""))
    lines = [shlex.join([sys.executable, "-c", LOOPBACK]), *(command_line(words, tmp_path / "results") for words in of_page)]
    done = subprocess.run(
        [*ALONE, "bash", "-euc", "\n".join(lines)],
        cwd=tmp_path,
        env={**environment(), "RAY_TMPDIR": str(ray_folder), "HOME": str(ray_folder)},  # the token lies at home
        capture_output=True,
        text=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Stopped all" in done.stdout + done.stderr
    (file,) = (tmp_path / "results").glob("small/*/result.json")
    (line,) = file.read_text().splitlines()
    assert json.loads(line)["env_runners"]["num_episodes"] > 0

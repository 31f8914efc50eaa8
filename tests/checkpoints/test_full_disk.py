"""A disk that is full while a checkpoint is written: the one before stays whole, and the message says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.mark.process
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """A disk of 8 MB, in a namespace of its own: real writes fail, half-way."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=8m tmpfs {folder} && exec "$@"'
    small_disk = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*small_disk, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces: a small disk cannot be made")
    path = os.pathsep.join(filter(None, [str(SUPPORT), *sys.path]))
    command = [*small_disk, sys.executable, str(SUPPORT / "full_disk_checkpoint.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["before"], found["after"]) == ("", "")
    for by in ("python", "torch"):
        assert f"there is no room on the disk of {folder} for the checkpoint checkpoint" in found[by], found
        assert "go on with --resume" in found[by]
        assert found[f"{by}, left"] == ["checkpoint", "filler"]
        assert found[f"{by}, whole"]

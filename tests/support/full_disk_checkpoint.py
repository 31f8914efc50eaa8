"""Checkpoints on a full disk: ``python full_disk_checkpoint.py FOLDER`` prints as JSON what happened."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from full_disk import fill_up

from rapo_rllib.checkpoints.folder import atomic_directory, check_whole
from rapo_rllib.errors import CheckpointError


def write(path: Path, by: str) -> str:
    """Three megabytes, by Python or by PyTorch; what was raised."""
    try:
        with atomic_directory(path, iteration=1) as folder:
            if by == "python":
                (folder / "weights").write_bytes(b"x" * 3_000_000)
            else:
                torch.save(torch.zeros(750_000), folder / "weights")
    except CheckpointError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    checkpoint = folder / "checkpoint"
    found: dict[str, object] = {"before": write(checkpoint, "python")}
    filler = folder / "filler"
    for by in ("python", "torch"):
        fill_up(filler)
        with filler.open("r+b") as file:
            file.truncate(filler.stat().st_size - 1_000_000)  # a part of it has room
        found[by] = write(checkpoint, by)
        found[f"{by}, left"] = sorted(entry.name for entry in folder.iterdir())
        found[f"{by}, whole"] = check_whole(checkpoint)["iteration"] == 1
        filler.unlink()
    found["after"] = write(checkpoint, "torch")
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))

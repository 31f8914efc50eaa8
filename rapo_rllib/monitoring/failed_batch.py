"""The batch whose update was not finite, for whoever wants to know why."""

from __future__ import annotations

import io
from typing import Any

import torch

from rapo_rllib.batching.training_batch import TrainingBatch


def save_batch(folder: str, name: str, batch: TrainingBatch, filesystem: Any = None) -> str:
    """Write a batch; ``torch.load(path, weights_only=False)`` reads it, and ``learner.update(training_data=...)`` takes it.

    Args:
        folder: made if it is missing.
        name: of the file.
        batch: of all learners.
        filesystem: a ``pyarrow.fs.FileSystem``, as Tune stores trials on; None: this machine's.

    Returns:
        The path.
    """
    from pyarrow.fs import LocalFileSystem

    filesystem = filesystem or LocalFileSystem()
    filesystem.create_dir(folder, recursive=True)
    buffer, path = io.BytesIO(), f"{folder}/{name}"
    torch.save(batch, buffer)
    with filesystem.open_output_stream(path) as file:
        file.write(buffer.getbuffer())
    return path

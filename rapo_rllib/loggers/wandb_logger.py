"""Tune's Weights & Biases logger, and transcripts as an artifact of the trial's run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from ray.air.integrations.wandb import WandbLoggerCallback, _QueueItem, _WandbLoggingActor

from rapo_rllib.loggers.trial_transcripts import FOLDER, NewTranscripts, local_folder, still_there
from rapo_rllib.services.credentials import check_no_secret

_WITHOUT_KEY = ("offline", "disabled")


class WandbLogger(WandbLoggerCallback):
    """As Tune's; whenever a checkpoint is written and at the end, all transcripts become a version of an artifact.

    W&B stores a file that several versions hold once.

    Args:
        transcripts: whether they do.
        **kwargs: of ``WandbLoggerCallback``: ``project``, ``group``, ``upload_checkpoints``, ...; others of ``wandb.init``.
    """

    def __init__(self, transcripts: bool = True, **kwargs: Any) -> None:
        check_no_secret(kwargs, "wandb", "set WANDB_API_KEY, or name a file by api_key_file")
        super().__init__(**kwargs)
        self._new = NewTranscripts() if transcripts else None
        self._logger_actor_cls = _LogsTranscripts

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Look for the key and the project; Tune's own wants a key also for ``mode: offline``."""
        with _mode(self.kwargs.get("mode")):
            super().setup(*args, **kwargs)

    def log_trial_start(self, trial: Any) -> None:
        """Start the trial's run, whose own files lie in the trial's folder; Tune has them where Ray's temporary files are."""
        given, storage = self.kwargs, trial.storage
        if isinstance(storage.storage_filesystem, LocalFileSystem):
            Path(storage.trial_fs_path).mkdir(parents=True, exist_ok=True)
            self.kwargs = {"dir": storage.trial_fs_path, **given}
        super().log_trial_start(trial)
        self.kwargs = given

    def log_trial_save(self, trial: Any) -> None:
        """A checkpoint was written."""
        super().log_trial_save(trial)
        self._send(trial)

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """The trial's run is closed."""
        self._send(trial)
        super().log_trial_end(trial, failed)

    def _send(self, trial: Any) -> None:
        names = [] if self._new is None else self._new.take(trial)
        if names and trial in self._trial_queues:
            self._trial_queues[trial].put((_QueueItem.CHECKPOINT, str(local_folder(trial, names))))


class _LogsTranscripts(_WandbLoggingActor):
    """The process that talks to W&B, one a trial."""

    def run(self) -> None:
        """Pass on what the trial sends; W&B's own process, which dies with this one, goes on to write after ``finish``."""
        super().run()
        self._wandb.teardown()

    def _handle_checkpoint(self, checkpoint_path: str) -> None:
        folder = Path(checkpoint_path)
        if folder.name != FOLDER:
            super()._handle_checkpoint(checkpoint_path)
            return
        artifact = self._wandb.Artifact(name=f"{FOLDER}_{self._trial_name}", type=FOLDER)
        kept = (self.kwargs.get("config") or {}).get("transcripts") is True
        policy = "immutable" if kept else "mutable"  # without a copy of W&B's own, or with one, for the file may be deleted
        for name in still_there(folder, sorted(file.name for file in folder.glob("*.jsonl"))):
            artifact.add_file(str(folder / name), policy=policy)
        self._wandb.log_artifact(artifact)


@contextmanager
def _mode(mode: str | None) -> Iterator[None]:
    """``WANDB_MODE``, by which Tune's logger knows that no key is needed, as ``mode`` says."""
    before = os.environ.get("WANDB_MODE")
    if mode in _WITHOUT_KEY:
        os.environ["WANDB_MODE"] = str(mode)
    try:
        yield
    finally:
        if mode in _WITHOUT_KEY:
            os.environ.pop("WANDB_MODE")
            if before is not None:
                os.environ["WANDB_MODE"] = before

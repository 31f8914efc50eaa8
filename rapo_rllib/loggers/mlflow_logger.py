"""Tune's MLflow logger, and transcripts as artifacts of the trial's run."""

from __future__ import annotations

from typing import Any

from mlflow.exceptions import MlflowException
from ray.air.integrations.mlflow import MLflowLoggerCallback

from rapo_rllib.loggers.trial_transcripts import FOLDER, NewTranscripts, local_folder, still_there
from rapo_rllib.services.credentials import check_address


class MLflowLogger(MLflowLoggerCallback):
    """As Tune's; whenever a checkpoint is written and at the end, new transcripts go to the folder ``transcripts`` of the run.

    Args:
        transcripts: whether they do.
        **kwargs: of ``MLflowLoggerCallback``: ``tracking_uri``, ``experiment_name``, ``tags``, ``save_artifact``, ...
    """

    def __init__(self, transcripts: bool = True, **kwargs: Any) -> None:
        check_address(kwargs.get("tracking_uri"), "tracking_uri", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
        super().__init__(**kwargs)
        self._new = NewTranscripts() if transcripts else None

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Reach the tracking server. Raises ``ValueError`` if that fails."""
        try:
            super().setup(*args, **kwargs)
        except MlflowException as error:
            raise ValueError(f"loggers: mlflow: tracking_uri = {self.tracking_uri!r}: {error}") from error

    def log_trial_save(self, trial: Any) -> None:
        """A checkpoint was written."""
        self._send(trial)

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """The trial's run is closed."""
        self._send(trial)
        super().log_trial_end(trial, failed)

    def _send(self, trial: Any) -> None:
        names = [] if self._new is None else self._new.take(trial)
        if not names:
            return
        client, run_id = self.mlflow_util._get_client(), self._trial_runs[trial]
        folder = local_folder(trial, names)
        for name in still_there(folder, names):
            client.log_artifact(run_id, str(folder / name), artifact_path=FOLDER)

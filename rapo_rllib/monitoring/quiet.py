"""Keep other libraries' lines off the terminal if a user can do nothing about them; errors and all other lines stay."""

from __future__ import annotations

import logging
import os
import warnings

# Read by libraries when they are loaded, here and in the processes that this one starts.
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # of transformers, too
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TUNE_WARN_THRESHOLD_S": "10",  # Tune warns of its own slowness
}
# logger -> what its needless lines contain
_NEEDLESS = {
    "ray._common.deprecation": "RLModule(config=[RLModuleConfig object])",  # RLlib's own use
    "ray._private.authentication.authentication_token_setup": "Token authentication is enabled",  # as it is by default
    "ray.rllib.algorithms.algorithm_config": "on the new API stack!",  # the only one there is here
    "ray.train._internal.storage": "Checkpoint successfully created at",  # cli/train/progress.py says it
    "ray.tune.analysis.experiment_analysis": "Failed to fetch metrics",  # of trials that ended before their first result
    "ray.tune.trainable.trainable": "Trainable.setup took",  # an engine takes seconds to start, and no actor is there to reuse
    "ray.tune.tune": "Trials did not complete",  # run.py says which and why
    "ray.tune.utils.util": "Install gputil",
}


def quiet_libraries() -> None:
    """Set log levels and switches of libraries before they are loaded; environment variables that are set already stay."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    quiet()


def quiet() -> None:
    """Set levels and filters of this process's loggers and warnings; a second call changes nothing. Ray calls it in workers."""
    warnings.filterwarnings("ignore", ".*Overriding environment rllib-")  # gymnasium's, of RLlib's own registrations
    logging.getLogger("vllm").setLevel(logging.ERROR)  # until it has read its environment variable
    for name, text in _NEEDLESS.items():
        logger = logging.getLogger(name)
        if not any(isinstance(known, _Without) for known in logger.filters):
            logger.addFilter(_Without(text))


class _Without(logging.Filter):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self._text not in record.getMessage()

"""Keeps lines of Ray off the terminal that a user can do nothing about; every other line stays."""

from __future__ import annotations

import logging

# logger -> what its needless lines contain
_NEEDLESS = {
    "ray._common.deprecation": "RLModule(config=[RLModuleConfig object])",  # RLlib's own use
    "ray.rllib.algorithms.algorithm_config": "on the new API stack!",  # the only one there is here
    "ray.train._internal.storage": "Checkpoint successfully created at",  # monitoring/progress.py says it
    "ray.tune.analysis.experiment_analysis": "Failed to fetch metrics",  # of trials that ended before their first result
    "ray.tune.trainable.trainable": "Trainable.setup took",  # an engine takes seconds to start, and no actor is there to reuse
    "ray.tune.tune": "Trials did not complete",  # run.py says which and why
    "ray.tune.utils.util": "Install gputil",
}


def quiet() -> None:
    """Filter the loggers of this process; a second call changes nothing."""
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

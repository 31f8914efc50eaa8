"""Turn plain numbers into RLlib's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.utils.metrics import (
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger


def logged_metrics(values: Mapping[str, float], env_steps: int | None = None, episodes: int | None = None) -> Any:
    """Turn the numbers of one phase into stats for ``algorithm.metrics.aggregate``; ``a/b`` becomes the nested key ``(a, b)``.

    Each value stands for this iteration alone; the two lifetime counters add up over the training.
    """
    logger = MetricsLogger(root=False)
    for name, value in values.items():
        logger.log_value(tuple(name.split("/")), value, reduce="mean", window=1)
    if env_steps is not None:
        logger.log_value(NUM_ENV_STEPS_SAMPLED, env_steps, reduce="sum")
        logger.log_value(NUM_ENV_STEPS_SAMPLED_LIFETIME, env_steps, reduce="lifetime_sum")
    if episodes is not None:
        logger.log_value(NUM_EPISODES, episodes, reduce="sum")
        logger.log_value(NUM_EPISODES_LIFETIME, episodes, reduce="lifetime_sum")
    return logger.reduce()

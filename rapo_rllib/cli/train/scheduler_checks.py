"""Refuse what a scheduler would fail at in the middle of a run: a metric that comes too seldom, a value no config takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.train.schedulers import MUTATIONS, bounds, mutations_of, with_value
from rapo_rllib.monitoring.metrics_flat import flattened

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def check_scheduler(
    scheduler: Any,
    given: Mapping[str, Any],
    variant: Mapping[str, Any],
    config: AlgorithmConfig,
    made_config: Callable[[dict[str, Any]], Any],
) -> None:
    """Check a scheduler against one variant of an experiment.

    Args:
        scheduler: Tune's.
        given: its type and arguments.
        variant: what the experiment says in ``config``.
        config: the ``AlgorithmConfig`` made of it.
        made_config: makes one of another variant, refusing unknown keys and values of a wrong kind.

    Raises:
        ValueError: naming the key and what to do.
    """
    metric, interval = getattr(scheduler, "_metric", None) or "", config.evaluation_interval
    if metric.startswith("evaluation/") and not interval:
        raise ValueError(f"scheduler.metric = {metric!r}: nothing is evaluated; set config.evaluation_interval")
    if metric.startswith("evaluation/") and (interval or 1) > 1 and getattr(scheduler, "_require_attrs", False):
        raise ValueError(
            f"scheduler.metric = {metric!r} is in one of {interval} results only (config.evaluation_interval): set "
            "scheduler.require_attrs to false, or evaluate every iteration"
        )
    begun = flattened(variant)
    for key, values in flattened(mutations_of(given)).items():
        name, dotted = f"scheduler.{MUTATIONS}.{key.replace('/', '.')}", f"config.{key.replace('/', '.')}"
        if key not in begun and "/" in key:  # Tune draws one where a key of the top level has none
            raise ValueError(f"{name}: {dotted} has no value to begin with; give it one, or a search")
        if isinstance(begun.get(key), list) and not isinstance(values, list):
            raise ValueError(
                f"{name}: {dotted} = {begun[key]!r} is a schedule, which cannot be multiplied; leave it out of config, "
                "or give a list of schedules to choose from"
            )
        for value in values if isinstance(values, list) else bounds(values):
            try:
                _ = value is None or made_config(with_value(variant, key, value)).validate()
            except ValueError as error:
                raise ValueError(f"{name}: the value {value!r} is refused: {error}") from error

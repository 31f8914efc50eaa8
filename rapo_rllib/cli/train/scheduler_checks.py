"""What a scheduler would fail at in the middle of a run: a metric that comes too seldom, a value no config takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from rapo_rllib.cli.train.schedulers import MUTATIONS, ends, make_scheduler, mutated, mutations_of


def check_scheduler(
    given: Mapping[str, Any], variant: Mapping[str, Any], config: Any, made_config: Callable[[dict[str, Any]], Any]
) -> None:
    """Check a scheduler against one variant of an experiment.

    Args:
        given: type and arguments.
        variant: what the experiment says in ``config``.
        config: the ``AlgorithmConfig`` made of it.
        made_config: makes one of another variant, refusing unknown keys and values of a wrong kind.

    Raises:
        ValueError: naming the key and what to do.
    """
    scheduler = make_scheduler(given)
    metric = getattr(scheduler, "_metric", None) or ""
    if metric.startswith("evaluation/"):
        _check_evaluated(metric, getattr(scheduler, "_require_attrs", False), config.evaluation_interval)
    for path, distribution in mutated(mutations_of(given)):
        name = f"scheduler.{MUTATIONS}.{'.'.join(path)}"
        _check_start(name, path, distribution, variant)
        for value in ends(distribution):
            try:
                made_config(_with(variant, path, value)).validate()
            except ValueError as error:
                raise ValueError(f"{name}: the value {value!r} is refused: {error}") from error


def _check_evaluated(metric: str, required: bool, interval: int | None) -> None:
    if not interval:
        raise ValueError(f"scheduler.metric = {metric!r}: nothing is evaluated; set config.evaluation_interval")
    if required and interval > 1:
        raise ValueError(
            f"scheduler.metric = {metric!r} is in one of {interval} results only (config.evaluation_interval): set "
            "scheduler.require_attrs to false, or evaluate every iteration"
        )


def _check_start(name: str, path: tuple[str, ...], distribution: Any, variant: Mapping[str, Any]) -> None:
    """What is perturbed first is the value of ``config``; Tune draws one where a key of the top level has none."""
    if path[0] not in variant and len(path) == 1:
        return
    value: Any = variant
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"{name}: config.{'.'.join(path)} has no value to begin with; give it one, or a search")
        value = value[key]
    if isinstance(value, list) and not isinstance(distribution, list):
        raise ValueError(
            f"{name}: config.{'.'.join(path)} = {value!r} is a schedule, which cannot be multiplied; leave it out of config, "
            "or give a list of schedules to choose from"
        )


def _with(variant: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = deepcopy(dict(variant))
    inner = changed
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return changed

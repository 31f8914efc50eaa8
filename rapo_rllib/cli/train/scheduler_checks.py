"""Refuse what a scheduler would fail at in the middle of a run: a metric that comes too seldom, a value no config takes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.train.schedulers import MUTATIONS, ends, make_scheduler, mutated, mutations_of
from rapo_rllib.monitoring.metrics_flat import flattened

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def check_scheduler(
    given: Mapping[str, Any], variant: Mapping[str, Any], config: AlgorithmConfig, made_config: Callable[[dict[str, Any]], Any]
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
    """Require a first value of what is perturbed; Tune draws one where a key of the top level has none."""
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


_EVALUATION = "evaluation/"


class MetricCheck:
    """Raises at the first result that should have the metric and has not; ``problem`` says so: Tune makes it a traceback.

    Tune's own check ends a run whose metric only comes with evaluations.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self.problem: str | None = None

    def __call__(self, result: dict[str, Any]) -> None:
        """Called with every result, before the scheduler. Raises ``ValueError``."""
        names = flattened(result)
        evaluated = any(name.startswith(_EVALUATION) for name in names)
        if self._metric in names or (self._metric.startswith(_EVALUATION) and not evaluated):
            return
        near = difflib.get_close_matches(self._metric, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(sorted(names)[:20])}, ..."
        self.problem = f"scheduler.metric = {self._metric!r} is not among the results{hint}"
        raise ValueError(self.problem)

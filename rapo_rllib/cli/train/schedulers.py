"""``scheduler:`` of an experiment: one of Tune's trial schedulers by name, with its own arguments.

Tune's own ``create_scheduler`` silently drops arguments that it does not know, and has no name for ASHA.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.values import with_searches
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.validation import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

MUTATIONS = "hyperparam_mutations"


def make_scheduler(given: Mapping[str, Any]) -> Any:
    """Make Tune's scheduler ``given["type"]`` with the other entries as its arguments.

    Values that Population Based Training perturbs stay within the range they are sampled from.

    Raises:
        ValueError: naming the key and what to do.
    """
    from ray.tune import TuneError

    arguments = dict(given)
    name = arguments.pop("type", None)
    scheduler = _scheduler_class(name)
    accepted = inspect.signature(scheduler).parameters
    refuse_unknown_keys([str(key) for key in arguments], [*accepted, "type"], where="scheduler.")
    if "metric" in accepted:
        if not isinstance(arguments.get("metric"), str):
            raise ValueError("scheduler.metric is missing: name a result to compare, such as env_runners/episode_return_mean")
        if arguments.setdefault("mode", "max") not in ("max", "min"):
            raise ValueError(f"scheduler.mode = {arguments['mode']!r}: must be max or min")
    if MUTATIONS in arguments:
        arguments[MUTATIONS] = mutations = mutations_of(given)
        arguments.setdefault("custom_explore_fn", _WithinRange(mutations))
    if "perturbation_factors" in arguments:
        arguments["perturbation_factors"] = tuple(arguments["perturbation_factors"])
    try:
        return scheduler(**arguments)
    except (ValueError, TypeError, AssertionError, ImportError, RuntimeError, TuneError) as error:
        raise ValueError(f"scheduler {name}: {error}") from error


def _scheduler_class(name: Any) -> Any:
    from ray.tune.schedulers import SCHEDULER_IMPORT, ASHAScheduler

    known: dict[str, Any] = {**SCHEDULER_IMPORT, "asha": ASHAScheduler}
    if str(name) not in known:
        raise ValueError(f"scheduler.type = {name!r}: must be one of {', '.join(sorted(known))}")
    try:
        return known[name]() if inspect.isfunction(known[name]) else known[name]  # a function imports a class on demand
    except ImportError as error:
        raise ValueError(f"scheduler.type = {name!r}: {error}") from error


def check_scheduler(scheduler: Any, given: Mapping[str, Any], variant: Mapping[str, Any], config: AlgorithmConfig) -> None:
    """Refuse a metric that comes too seldom, or mutations that cannot be made: they would end a run halfway.

    Args:
        scheduler: Tune's.
        given: its type and arguments.
        variant: ``config`` of the experiment, with one choice of each search.
        config: the ``AlgorithmConfig`` made of ``variant``.

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
        dotted = key.replace("/", ".")
        if isinstance(begun.get(key), list) and not isinstance(values, list):
            raise ValueError(
                f"scheduler.{MUTATIONS}.{dotted}: config.{dotted} = {begun[key]!r} is a schedule, which cannot be multiplied; "
                "leave it out of config, or give a list of schedules to choose from"
            )
        if key not in begun and "/" in key:  # Tune draws a value only for keys of the top level
            raise ValueError(
                f"scheduler.{MUTATIONS}.{dotted}: config.{dotted} has no value to begin with; give it one, or a search"
            )


def mutations_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``hyperparam_mutations``: lists, or objects that Tune samples from, nested as the config is; empty without any."""
    mutations = given.get(MUTATIONS) or {}
    if not isinstance(mutations, Mapping):
        raise ValueError(f"scheduler.{MUTATIONS} = {mutations!r}: must be a mapping of config keys to lists or ranges")
    made: dict[str, Any] = with_searches(dict(mutations), f"scheduler.{MUTATIONS}")
    for key, values in flattened(made).items():
        if not isinstance(values, list) and not hasattr(values, "sample"):
            where = f"scheduler.{MUTATIONS}.{key.replace('/', '.')}"
            raise ValueError(f"{where} = {values!r}: must be a list of values, or a range such as {{uniform: [0, 1]}}")
    return made


def _bounds(values: Any) -> tuple[float, float]:
    """Find the lowest and the highest number of a search space of Tune; infinite if there is no such bound."""
    from ray.tune.search.sample import Integer

    if numbers := [one for one in getattr(values, "categories", ()) if isinstance(one, int | float)]:
        return min(numbers), max(numbers)
    low, high = getattr(values, "lower", -math.inf), getattr(values, "upper", math.inf)
    return low, high - isinstance(values, Integer)  # Tune's upper end of whole numbers is exclusive


@dataclass(frozen=True)
class _WithinRange:
    """Function that puts mutated values back into their ranges: a perturbation factor of Tune may make a probability 1.2."""

    mutations: dict[str, Any]

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        changed = deepcopy(config)
        for key, values in flattened(self.mutations).items():
            if not isinstance(values, list):
                *parents, last = key.split("/")
                inner = reduce(getitem, parents, changed)
                low, high = _bounds(values)
                if isinstance(inner[last], int | float):
                    inner[last] = min(max(inner[last], low), high)
        return changed

"""``scheduler:`` of an experiment: one of Tune's trial schedulers by name, with its own arguments.

    {type: pbt, metric: ..., hyperparam_mutations: {...}}  --names checked, searches made-->  PopulationBasedTraining(...)

Tune's own ``create_scheduler`` drops arguments that it does not know without a word, and has no name for ASHA.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.values import with_searches
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.validation import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

MUTATIONS = "hyperparam_mutations"
_ASHA, _PBT = "async_hyperband", "pbt"  # as Tune calls them
_OTHER_NAMES = {"asha": _ASHA, "ashascheduler": _ASHA, "populationbasedtraining": _PBT}


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
    from ray.tune.schedulers import SCHEDULER_IMPORT

    known = sorted({"asha", *SCHEDULER_IMPORT})
    found = SCHEDULER_IMPORT.get(_OTHER_NAMES.get(str(name).lower(), str(name).lower()))
    if found is None:
        raise ValueError(f"scheduler.type = {name!r}: must be one of {', '.join(known)}")
    try:
        return found() if inspect.isfunction(found) else found  # a function imports what needs more packages
    except ImportError as error:
        raise ValueError(f"scheduler.type = {name!r}: {error}") from error


def check_scheduler(
    scheduler: Any,
    given: Mapping[str, Any],
    variant: Mapping[str, Any],
    config: AlgorithmConfig,
    made_config: Callable[[dict[str, Any]], Any],
) -> None:
    """Refuse what a scheduler would fail at in the middle of a run: a metric that comes too seldom, a value no config takes.

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


def mutations_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``hyperparam_mutations``: lists, and what Tune samples from, nested as the config; empty where there are none."""
    mutations = given.get(MUTATIONS) or {}
    if not isinstance(mutations, Mapping):
        raise ValueError(f"scheduler.{MUTATIONS} = {mutations!r}: must be a mapping of config keys to lists or ranges")
    made: dict[str, Any] = with_searches(dict(mutations), f"scheduler.{MUTATIONS}")
    for key, values in flattened(made).items():
        if not isinstance(values, list) and not hasattr(values, "sample"):
            where = f"scheduler.{MUTATIONS}.{key.replace('/', '.')}"
            raise ValueError(f"{where} = {values!r}: must be a list of values, or a range such as {{uniform: [0, 1]}}")
    return made


def bounds(values: Any) -> list[Any]:
    """Return the lowest and the highest number of a search space of Tune; None for an open end.

    Example: [0.1, 0.9] for ``tune.uniform(0.1, 0.9)``, [1, 3] for ``tune.randint(1, 4)``.
    """
    from ray.tune.search.sample import Integer

    if numbers := [one for one in getattr(values, "categories", ()) if isinstance(one, int | float)]:
        return [min(numbers), max(numbers)]
    low, high = getattr(values, "lower", None), getattr(values, "upper", None)
    if isinstance(values, Integer):
        high = values.upper - 1  # Tune's upper end of whole numbers is outside
    return [None if end in (-float("inf"), float("inf")) else end for end in (low, high)]


def with_value(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Copy a config with another value at ``a/b``."""
    changed = deepcopy(dict(config))
    *parents, last = key.split("/")
    inner = changed
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return changed


@dataclass(frozen=True)
class _WithinRange:
    """Put a value back into its range: a perturbation factor of Tune may make a probability 1.2."""

    mutations: dict[str, Any]

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        now = flattened(config)
        for key, values in flattened(self.mutations).items():
            if not isinstance(values, list):
                low, high = bounds(values)
                value = now[key] if low is None else max(now[key], low)
                config = with_value(config, key, value if high is None else min(value, high))
        return config

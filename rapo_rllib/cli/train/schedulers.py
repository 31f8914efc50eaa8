"""``scheduler:`` of an experiment, or ``--scheduler``: one of Tune's trial schedulers by name, with its own arguments.

    {type: pbt, metric: ..., hyperparam_mutations: {...}}  --names checked, searches made-->  PopulationBasedTraining(...)

Tune's own ``create_scheduler`` drops arguments that it does not know without a word, and has no name for ASHA.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rapo_rllib.cli.train.search_space import with_searches
from rapo_rllib.validation import refuse_unknown_keys

MUTATIONS = "hyperparam_mutations"
_ASHA, _PBT = "async_hyperband", "pbt"  # as Tune calls them
_OTHER_NAMES = {"asha": _ASHA, "ashascheduler": _ASHA, "populationbasedtraining": _PBT}


def make_scheduler(given: Mapping[str, Any]) -> Any:
    """Tune's scheduler ``given["type"]`` with the other entries as its arguments.

    Values that Population Based Training perturbs stay within the range they are sampled from.

    Raises:
        ValueError: naming the key and what to do.
    """
    arguments = dict(given)
    name = arguments.pop("type", None)
    scheduler = _scheduler_class(name)
    accepted = inspect.signature(scheduler).parameters
    refuse_unknown_keys([str(key) for key in arguments], [*accepted, "type"], where="scheduler.")
    if "metric" in accepted:
        _complete_metric(arguments)
    if MUTATIONS in arguments:
        arguments[MUTATIONS] = mutations = mutations_of(given)
        arguments.setdefault("custom_explore_fn", _WithinRange(mutations))
    if "perturbation_factors" in arguments:
        arguments["perturbation_factors"] = tuple(arguments["perturbation_factors"])
    return _called(scheduler, arguments, name)


def trained_at_most(given: Mapping[str, Any]) -> dict[str, float]:
    """``{result: number}`` at which a scheduler ends a trial however good it is: ASHA's ``max_t``; empty where it has none."""
    accepted = inspect.signature(_scheduler_class(given.get("type"))).parameters
    if not {"time_attr", "max_t"} <= accepted.keys() or not given.get("stop_last_trials", True):
        return {}
    time_attr, max_t = (given.get(key, accepted[key].default) for key in ("time_attr", "max_t"))
    return {time_attr: float(max_t)}


def _called(scheduler: Any, arguments: dict[str, Any], name: Any) -> Any:
    from ray.tune import TuneError

    try:
        return scheduler(**arguments)
    except (ValueError, TypeError, AssertionError, ImportError, RuntimeError, TuneError) as error:
        raise ValueError(f"scheduler {name}: {error}") from error


def _scheduler_class(name: Any) -> Any:
    from ray.tune.schedulers import SCHEDULER_IMPORT

    known = sorted({"asha", *SCHEDULER_IMPORT})
    if not isinstance(name, str):
        raise ValueError(f"scheduler.type = {name!r}: name one of {', '.join(known)}")
    found = SCHEDULER_IMPORT.get(_OTHER_NAMES.get(name.lower(), name.lower()))
    if found is None:
        raise ValueError(f"scheduler.type = {name!r}: must be one of {', '.join(known)}")
    try:
        return found() if inspect.isfunction(found) else found  # a function imports what needs more packages
    except ImportError as error:
        raise ValueError(f"scheduler.type = {name!r}: {error}") from error


def _complete_metric(arguments: dict[str, Any]) -> None:
    metric = arguments.get("metric")
    if not isinstance(metric, str):
        raise ValueError("scheduler.metric is missing: name a result to compare, for example env_runners/episode_return_mean")
    if arguments.setdefault("mode", "max") not in ("max", "min"):
        raise ValueError(f"scheduler.mode = {arguments['mode']!r}: must be max or min")


def mutations_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """``hyperparam_mutations`` of a scheduler's arguments: lists, and what Tune samples from; empty where there are none."""
    mutations = given.get(MUTATIONS) or {}
    if not isinstance(mutations, Mapping):
        raise ValueError(f"scheduler.{MUTATIONS} = {mutations!r}: must be a mapping of config keys to lists or ranges")
    made: dict[str, Any] = {
        key: value if isinstance(value, list) else with_searches(value, f"scheduler.{MUTATIONS}.{key}")
        for key, value in mutations.items()
    }
    for path, distribution in mutated(made):
        if not isinstance(distribution, list) and not hasattr(distribution, "sample"):
            raise ValueError(
                f"scheduler.{MUTATIONS}.{'.'.join(path)} = {distribution!r}: must be a list of values, or a range such as "
                "{uniform: [0, 1]}"
            )
    return made


def mutated(mutations: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The config keys that are mutated, nested ones as paths, with what their values are taken from."""
    for key, value in mutations.items():
        if isinstance(value, Mapping):
            yield from (((key, *path), distribution) for path, distribution in mutated(value))
        else:
            yield (key,), value


def ends(distribution: Any) -> list[Any]:
    """The values of a list, or the two ends of a range; nothing where it has no ends."""
    if isinstance(distribution, list):
        return distribution
    lower, upper = _bounds(distribution)
    return [value for value in (lower, upper) if value is not None]


def _bounds(distribution: Any) -> tuple[Any, Any]:
    from ray.tune.search.sample import Categorical, Float, Integer

    if isinstance(distribution, Categorical):
        numbers = [value for value in distribution.categories if isinstance(value, (int, float))]
        return (min(numbers), max(numbers)) if numbers else (None, None)
    if isinstance(distribution, (Float, Integer)):
        last = 1 if isinstance(distribution, Integer) else 0  # Tune's upper end of whole numbers is outside
        low, high = distribution.lower, distribution.upper
        return (None if low == -float("inf") else low), (None if high == float("inf") else high - last)
    return None, None


@dataclass(frozen=True)
class _WithinRange:
    """After Tune has multiplied a value by a perturbation factor it may lie outside: a chance of 1.2, say."""

    mutations: dict[str, Any]

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        for path, distribution in mutated(self.mutations):
            if not isinstance(distribution, list):
                inner: Any = config
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = _clipped(inner[path[-1]], *_bounds(distribution))
        return config


def _clipped(value: Any, lower: Any, upper: Any) -> Any:
    if lower is not None:
        value = max(value, lower)
    return value if upper is None else min(value, upper)

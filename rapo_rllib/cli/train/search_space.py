"""Search expressions in files and options: ``{uniform: [0, 1]}`` is ``tune.uniform(0, 1)``; ``grid_search`` is Tune's own.

lr: {loguniform: [1e-6, 1e-4]}      a call of ray.tune with these arguments
group_size: {choice: [4, 8, 16]}    one of these
"""

from __future__ import annotations

from typing import Any

SEARCHES = (
    *("uniform", "quniform", "loguniform", "qloguniform", "randn", "qrandn"),
    *("randint", "qrandint", "lograndint", "qlograndint", "choice"),
)
_GRID = "grid_search"


def is_search(value: Any) -> bool:
    """Whether ``value`` stands for one of many: ``{name of a search: [arguments]}``."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((name, arguments),) = value.items()
    return name == _GRID or (name in SEARCHES and isinstance(arguments, list))


def with_searches(value: Any, where: str) -> Any:
    """``value`` with every search expression in it, however deep, as the object that Tune samples from.

    Args:
        value: as a file has it; it stays as it is.
        where: its key, for messages.

    Raises:
        ValueError: naming the key whose expression means nothing.
    """
    if isinstance(value, list):
        return [with_searches(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, dict) or _GRID in value:
        return value
    if is_search(value):
        ((name, arguments),) = value.items()
        return _domain(name, arguments, where)
    return {key: with_searches(item, f"{where}.{key}") for key, item in value.items()}


def _domain(name: str, arguments: list[Any], where: str) -> Any:
    from ray import tune

    shown = f"{where} = {{{name}: {arguments}}}"
    if name != "choice" and not all(isinstance(number, int | float) for number in arguments):
        raise ValueError(f"{shown}: its arguments are numbers, as those of ray.tune.{name}")
    try:
        domain = tune.choice(arguments) if name == "choice" else getattr(tune, name)(*arguments)
        domain.sample()
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{shown}: {error}") from error
    if name not in ("choice", "randn", "qrandn") and arguments[0] >= arguments[1]:
        raise ValueError(f"{shown}: the first number is the lower end, the second the upper")
    return domain

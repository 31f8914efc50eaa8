"""Keys of RAPO that had another name: what to write now, and what a checkpoint of then means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

# old name -> (what to write in its place, the new name, its value made of the old one)
_RENAMED: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "one_step_off": ("max_staleness: 1 for true, and leave it out for false", "max_staleness", int),
}


def refuse_old_names(given: Collection[str]) -> None:
    """Raise ``ValueError`` where a user has written a name that is not used any more, with what to write."""
    for name in given:
        if name in _RENAMED:
            raise ValueError(f"{name} is now called {_RENAMED[name][1]}: write {_RENAMED[name][0]}")


def with_new_names(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a checkpoint's config under the names of today.

    Example: ``{"one_step_off": True, "seed": 1}`` is ``{"max_staleness": 1, "seed": 1}``.
    """
    found = {name: value for name, value in keys.items() if name not in _RENAMED}
    renamed = {_RENAMED[name][1]: _RENAMED[name][2](value) for name, value in keys.items() if name in _RENAMED}
    return {**renamed, **found}

"""Types of nested keys: a value that a settings class does not declare is refused where the user gave it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    NoneType: "null",
}


def check_types(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Refuse values of another type than the fields of the settings class ``cls`` have; nested settings are left to theirs.

    A whole number is a number too; true and false are neither.

    Raises:
        ValueError: naming the key, its value and what it must be.
    """
    hints = get_type_hints(cls)
    for key, value in values.items():
        allowed = get_args(hints[key]) if isinstance(hints[key], UnionType) else (hints[key],)
        if all(kind in _NAMES for kind in allowed) and not any(_suits(value, kind) for kind in allowed):
            words = " or ".join(_NAMES[kind] for kind in allowed)
            raise ValueError(f"{where}.{key} = {value!r}: must be {words}")


def _suits(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and not math.isnan(value)
    return isinstance(value, kind)

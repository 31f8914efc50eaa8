"""Checks of the keys of ``env_config``, for whatever part reads them."""

from __future__ import annotations


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise ``ValueError`` naming the key of ``env_config``, its value and what it must be, unless ``condition``."""
    if not condition:
        raise ValueError(f"env_config.{key} = {value!r}: {rule}")


def is_int(value: object, low: int) -> bool:
    """Whether ``value`` is a whole number of at least ``low``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")

"""Nested results as flat names: ``{"env_runners": {"accuracy": 0.5}}`` <-> ``env_runners/accuracy``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flattened(values: Mapping[str, Any], separator: str = "/", prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one: ``{"a": {"b": 1}}`` becomes ``{"a/b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= flattened(value, separator, f"{name}{separator}") if isinstance(value, Mapping) and value else {name: value}
    return flat

"""JSON files that an earlier process wrote; a file of another shape than expected is refused, and the error names it.

A shape is a type; ``[shape]`` (a list of values of that shape); ``{str: shape}`` (an object with any keys and values of that
shape); or ``{"key": shape, ...}`` (an object with at least these keys, of which a key that ends in ``?`` may be missing).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import UnionType
from typing import Any

_WORDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def read_json(file: Path, shape: Any = dict) -> Any:
    """Read a JSON file and check its shape.

    Raises:
        ValueError: the file holds no JSON, or JSON of another shape; the message names the file.
        OSError: the file cannot be read.
    """
    return parsed(file.read_bytes(), shape, str(file))


def parsed(text: str | bytes, shape: Any, where: str) -> Any:
    """Parse JSON and check its shape. Raises ``ValueError`` that begins with ``where``, the name of the source."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: it is no JSON ({error})") from error
    if fault := difference(value, shape):
        raise ValueError(f"{where} is damaged: {fault}")
    return value


def difference(value: Any, shape: Any, name: str = "it") -> str:
    """Describe the first place where a JSON value differs from the shape; empty if there is none.

    Example: ``difference({"files": {"a": 1}}, {"files": {str: [int]}})`` is ``"files.a must be a list, not 1"``
    """
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not _is(value, kind):
        return f"{name} must be {_word(kind)}, not {json.dumps(value)[:60]}"
    inside = "" if name == "it" else f"{name}."
    if isinstance(shape, list):
        parts = [(each, shape[0], f"{inside}{number}") for number, each in enumerate(value)]
    elif isinstance(shape, dict) and str in shape:
        parts = [(each, shape[str], f"{inside}{key}") for key, each in value.items()]
    elif isinstance(shape, dict):
        keys = {key.removesuffix("?"): of for key, of in shape.items() if not key.endswith("?") or key[:-1] in value}
        if missing := [key for key in keys if key not in value]:
            return f"{inside}{missing[0]} is missing"
        parts = [(value[key], of, f"{inside}{key}") for key, of in keys.items()]
    else:
        parts = []
    return next(filter(None, (difference(*part) for part in parts)), "")


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        kind = int | float
    return isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool))


def _word(kind: Any) -> str:
    kinds = kind.__args__ if isinstance(kind, UnionType) else (kind,)
    return " or ".join(_WORDS.get(each, "null") for each in kinds)

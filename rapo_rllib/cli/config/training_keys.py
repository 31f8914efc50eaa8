"""The keys of ``RAPOConfig.training`` as a stub, for editors and type checkers, which do not run the code.

declarations in settings/ -> source() -> algorithm/training_keys.pyi, and a test compares
"""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rapo_rllib.algorithm.config import training_keys

_HEAD = '''\
"""The keys of ``RAPOConfig.training`` with their types. `rllib config typing` makes this file of `rapo_rllib/settings/`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

class TrainingKeys(TypedDict, total=False):
    """RAPO's own keys, then those that RLlib's ``training`` has."""

'''
_WRITTEN = {NoneType: "None", Any: "Any", tuple: "Sequence[Any]"}


def source() -> str:
    """The text of ``rapo_rllib/algorithm/training_keys.pyi``."""
    own = {name: _written(kind) for name, kind, _ in training_keys()}
    rllibs = set(inspect.signature(AlgorithmConfig.training).parameters) - {"self", "kwargs", *own}
    return _HEAD + "".join(f"    {name}: {kind}\n" for name, kind in {**own, **dict.fromkeys(sorted(rllibs), "Any")}.items())


def _written(kind: Any) -> str:
    """A type as source; what has keys of its own is a mapping."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " | ".join(map(_written, get_args(kind)))
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(choice) for choice in get_args(kind))}]"
    if (origin or kind) in _WRITTEN:
        return _WRITTEN[origin or kind]
    return kind.__name__ if kind in (bool, float, int, str) else "Mapping[str, Any]"


def _quoted(choice: Any) -> str:
    return f'"{choice}"' if isinstance(choice, str) else repr(choice)

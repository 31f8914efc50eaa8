"""Editors and type checkers read the keys of ``RAPOConfig.training`` from a module, which is made from the declarations."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_type_hints

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm import training_keys
from rapo_rllib.algorithm.training_keys import TrainingKeys
from rapo_rllib.cli.reference import _written, typed


def test_the_types_are_those_of_the_declarations() -> None:
    made = inspect.getsource(training_keys)
    assert made == typed(), "run: rllib config typing > rapo_rllib/algorithm/training_keys.py"


def test_the_signature_has_the_same_keys() -> None:
    shown = [name for name in inspect.signature(RAPOConfig.training).parameters if name not in ("self", "kwargs")]
    assert shown == list(get_type_hints(TrainingKeys))[: len(shown)]


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (float | None, "float | None"),
        (float | tuple, "float | Sequence[Any]"),
        (tuple[float, float], "Sequence[Any]"),
        (Literal["a", "b"], 'Literal["a", "b"]'),
        (dict | None, "Mapping[str, Any] | None"),
        (Any, "Any"),
    ],
)
def test_a_type_as_source(kind: Any, written: str) -> None:
    assert _written(kind) == written

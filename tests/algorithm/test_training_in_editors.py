"""Editors and type checkers read the keys of ``RAPOConfig.training`` from a stub, which is made from the declarations."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Literal

import pytest

import rapo_rllib
from rapo_rllib import RAPOConfig
from rapo_rllib.cli.reference import _written, typed


def test_the_stub_is_that_of_the_declarations() -> None:
    stub = Path(rapo_rllib.__file__).parent / "algorithm" / "training_keys.pyi"
    assert stub.read_text(encoding="utf-8") == typed(), "run: rllib config typing > rapo_rllib/algorithm/training_keys.pyi"


def test_the_signature_has_the_same_keys() -> None:
    shown = [name for name in inspect.signature(RAPOConfig.training).parameters if name not in ("self", "kwargs")]
    assert shown == re.findall(r"^    (\w+):", typed(), re.MULTILINE)[: len(shown)]


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

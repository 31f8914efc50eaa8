"""The calculator: exact, one operation a call."""

from __future__ import annotations

import pytest

from rapo_rllib.tools.calculator import Calculator


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("12 + 5", "17"),
        (" 12+5\n", "17"),
        ("3 - 5", "-2"),
        ("3--5", "8"),
        ("-3 * 5", "-15"),
        ("10 / 4", "2.5"),
        ("1 / 3", "0.3333333333"),
        ("-2 / 3", "-0.6666666667"),
        ("7 // 2", "3"),
        ("0.1 + 0.2", "0.3"),
        ("100 * 10", "1000"),
        ("5 - 5", "0"),
        ("999999999999999999 * 999999999999999999", "999999999999999998000000000000000001"),
    ],
)
def test_one_operation(call: str, result: str) -> None:
    assert Calculator().run(call).text == result


@pytest.mark.parametrize(
    "call", ["", "12", "1 + 2 + 3", "2 ** 3", "(1 + 2)", "x + 1", "1e3 + 1", "3 % 2", "1" * 19 + " + 1", "３ + 5"]
)
def test_anything_else_is_told_what_a_call_looks_like(call: str) -> None:
    result = Calculator().run(call)
    assert (result.error, result.text) == ("form", "one operation on two numbers a call, such as 12 + 5")


def test_division_by_zero() -> None:
    assert [Calculator().run(call).error for call in ("1 / 0", "1 // 0.0", "0 * 0")] == ["zero", "zero", None]

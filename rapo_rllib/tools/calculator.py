"""The calculator tool: one operation on two numbers a call, so that a problem of three operations takes three calls.

It is for tasks whose steps depend on each other. The python tool would do the whole calculation in one call.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction

from rapo_rllib.tools.base import ToolLimits, ToolResult

_NUMBER = r"-?\d{1,18}(?:\.\d{1,18})?"
_CALL = re.compile(rf"({_NUMBER})\s*([-+*]|//?)\s*({_NUMBER})", re.ASCII)
_OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
}
_DIGITS = 10  # behind the point


class Calculator:
    """Calculator of ``12 + 5``: two decimal numbers, and one of ``+``, ``-``, ``*``, ``/`` and ``//`` between them.

    The result is exact, but for rounding to ten digits behind the point.
    """

    name = tag = "calculator"
    description = "Works out one operation (+, -, *, / or //) on two decimal numbers, to ten digits behind the point."
    argument = "expression"
    limits = ToolLimits(timeout_s=5.0, max_output_chars=200)

    def run(self, input: str) -> ToolResult:
        """Work out the operation; a text that is no call gets an error that shows the form of a call."""
        call = _CALL.fullmatch(input.strip())
        if call is None:
            return ToolResult("one operation on two numbers a call, such as 12 + 5", error="form")
        left, right = Fraction(call[1]), Fraction(call[3])
        if call[2] in ("/", "//") and not right:
            return ToolResult("division by zero", error="zero")
        return ToolResult(_written(Fraction(_OPERATORS[call[2]](left, right))))


def _written(value: Fraction) -> str:
    """Write a decimal number with at most ten digits behind the point, and no zeros at the end."""
    whole = round(value * 10**_DIGITS)
    sign, digits = "-" * (whole < 0), f"{abs(whole):0{_DIGITS + 1}d}"
    return f"{sign}{digits[:-_DIGITS]}.{digits[-_DIGITS:]}".rstrip("0").rstrip(".")

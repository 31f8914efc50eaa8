"""Compares mathematical expressions with math-verify; ``symbolic.py`` starts it as ``python math_worker.py``.

It gets lines of JSON, lists ``[predicted, gold, seconds]``, and replies ``1`` or ``0``. It is a process because a model can
write an expression whose evaluation never ends (9^{9^{9^9}}) and can only be stopped from outside. The system ends the process
after ``seconds`` of computing; then there is no reply.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import sys
from fractions import Fraction
from typing import Any

_MEMORY_BYTES = 2**30  # of address space; sympy by itself takes a tenth of it
_DECIMAL = re.compile(r"-?\s*\d*\.(\d+)")
_MIN_DIGITS = 6  # fewest digits of a decimal that stands for a value with endless digits
_FLOAT_DIGITS = 15  # fewest digits of a floating point number that shows noise
_SURE_DIGITS = 12  # leading digits of such a number that are no noise


def equal(predicted: str, gold: str) -> bool:
    r"""Return whether math-verify finds the two equal and ``predicted`` has no open calculation that ``gold`` lacks.

    An inequality may stand for an interval: ``x > 3`` for ``(3, \infty)``.
    """
    from math_verify import verify
    from sympy import Eq, Expr

    right, left = parsed(gold), parsed(predicted)
    if left is None or right is None or isinstance(left, Expr) != isinstance(right, Expr):
        return False
    if (decimal := _DECIMAL.fullmatch(predicted.strip())) and not right.free_symbols:
        text = predicted.replace(" ", "")
        value = Fraction(str(right.evalf(_FLOAT_DIGITS + 30, chop=True)))
        return rounded(Fraction(text), len(text.replace(".", "").lstrip("-0")), -len(decimal[1]), value)
    if not unfinished(left) <= unfinished(right):
        return False
    left, right = _complex(left), _complex(right)
    if isinstance(left, Eq) and isinstance(right, Eq):
        return _same_equation(left, right)
    # None: no timeouts by signals, the system ends this process
    return bool(verify(right, left, timeout_seconds=None, allow_set_relation_comp=True))


def parsed(latex: str) -> Any:
    """Parse a formula into its sympy tree as it is written, without evaluation; None if it cannot be read."""
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, MatrixBase, nan, zoo

    found = parse(f"\\boxed{{{latex}}}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    tree = found[0] if found else None
    return tree if isinstance(tree, (Basic, MatrixBase)) and not tree.has(nan, zoo) else None


def rounded(written: Fraction, digits: int, last: int, value: Fraction) -> bool:
    """Return whether a decimal is ``value`` rounded or cut off, or ``value`` as a floating point number with its noise.

    Args:
        written: the decimal.
        digits: number of its digits, without zeros in front.
        last: power of ten of its last digit.
        value: the exact value.
    """
    missing = (value - written) * (-1 if written < 0 else 1)
    if digits >= _FLOAT_DIGITS:
        return abs(missing) < Fraction(10) ** (last + digits - _SURE_DIGITS)
    unit = Fraction(10) ** last
    return digits >= _MIN_DIGITS and -unit / 2 <= missing < unit


def _complex(tree: Any) -> Any:
    """Replace the letter i by the imaginary unit: math-verify takes i for a variable, real or not depending on the text."""
    from sympy import I

    return tree.xreplace({symbol: I for symbol in tree.free_symbols if symbol.name == "i"})


def _same_equation(left: Any, right: Any) -> bool:
    """Return whether one equation is a multiple of the other. Math-verify calls all without real solutions equal."""
    from sympy import simplify

    ratio = simplify((left.lhs - left.rhs) / (right.lhs - right.rhs))
    return not ratio.free_symbols and ratio.is_finite is True and ratio.is_zero is False


def unfinished(tree: Any) -> set[str]:
    r"""List the kinds of calculation that a tree still holds: plain numbers that are added, multiplied, raised to powers.

    ``2 + 3 + x`` holds a sum, ``2 * 3 x`` a product, ``10^2 - \sqrt{4}`` a power and a root; ``3 \sqrt{5}``, ``x/2`` nothing.
    """
    from sympy import Add, Mul, Pow, preorder_traversal

    found = set()
    for node in preorder_traversal(tree):
        if isinstance(node, Add) and _like_terms(node):
            found.add("sum")
        elif isinstance(node, Mul) and _several_numbers(node):
            found.add("product")
        elif isinstance(node, Pow):
            found.add(_open_power(node))
    return found - {""}


def _like_terms(node: Any) -> bool:
    r"""Return whether two terms differ by a number only: 2 + 3, x + x, 2 + 2^3, or \sqrt{8} + \sqrt{2}."""
    from sympy import Mul

    kinds = []
    for term in node.args:
        kind = Mul(*(factor for factor in _factors(term) if _number(factor) is None and not _whole_power(factor)))
        kinds.append(kind if kind.free_symbols else kind.doit().as_coeff_Mul()[1])  # of 2 \sqrt{2}: \sqrt{2}
    return len(set(kinds)) < len(kinds)


def _whole_power(tree: Any) -> bool:
    """Return whether a tree is a number to a whole power: 2^3, or 10^{-3}."""
    return tree.is_Pow and _number(tree.base) is not None and tree.exp.is_Integer


def _several_numbers(node: Any) -> bool:
    """Return whether a product has several numbers in its numerator or in its denominator; signs and ones do not count."""
    numbers = [value for factor in _factors(node) if (value := _number(factor)) is not None]
    return sum(value.p not in (1, -1) for value in numbers) > 1 or sum(value.q != 1 for value in numbers) > 1


def _open_power(node: Any) -> str:
    r"""Name an open calculation: ``power`` (2^3, \sqrt{2}^2), ``root`` (\sqrt{4}); empty if it is none: \sqrt{2}, x^2, 1/3."""
    if node.base.is_Pow and _number(node.base.base) is not None and node.exp.is_Integer and abs(node.exp) != 1:
        return "power"
    base, exponent = _number(node.base), _number(node.exp)
    if base is None or exponent is None or exponent == -1:
        return ""
    if exponent.is_Integer:
        return "power"
    return "root" if abs(exponent) < 1 and (base**exponent).is_Rational else ""


def _factors(term: Any) -> list[Any]:
    """List the factors of a term, products in products included."""
    return [factor for part in term.args for factor in _factors(part)] if term.is_Mul else [term]


def _number(tree: Any) -> Any:
    """Return the value of a tree that is a plain rational number (5, 2/3, 1/5) or a decimal; None for other trees."""
    from sympy import Rational

    if tree.is_Pow and tree.exp == -1 and tree.base.is_Rational and tree.base != 0:
        return 1 / tree.base
    return Rational(str(tree)) if tree.is_Rational or tree.is_Float else None


def main() -> None:
    """Answer requests until there are no more, or a comparison exceeds its limits."""
    logging.disable(logging.CRITICAL)  # math-verify logs whatever it cannot read
    replies, sys.stdout = sys.stdout, sys.stderr
    equal("[1,x]", "x^2")  # loads what sympy loads late
    equal("x+1", "1+x")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        *sides, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of computing, so that a busy machine judges like an idle one
        try:
            verdict = equal(*sides)
        except (MemoryError, RecursionError):
            return
        except Exception:  # sympy raises any error, depending on its input; the two are then not equal
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(int(verdict), file=replies, flush=True)


if __name__ == "__main__":
    main()

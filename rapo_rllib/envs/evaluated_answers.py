"""Check of answers that a verifier will evaluate as Python.

Some verifiers of reasoning-gym call ``eval`` on the policy's answer, or sympy's ``parse_expr``, which calls ``eval``. So an
answer may name a value, and do nothing else.
"""

from __future__ import annotations

import ast

MAX_CHARS = 2000
MAX_EXPONENT = 64
_MAX_DIGITS = 40  # of one number
_FUNCTION_NAMES = "sqrt exp log ln sin cos tan cot sec csc asin acos atan sinh cosh tanh asinh acosh atanh Abs"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)


def is_literal(text: str) -> bool:
    """Check whether ``eval(text)`` can do nothing but make a value or fail.

    >>> is_literal("[['Q', '_'], ['_', 'Q']]"), is_literal("a b c"), is_literal("__import__('os')")
    (True, True, False)
    """
    if len(text) > MAX_CHARS:
        return False
    tree = _parsed(text)
    if tree is None:
        return "\0" not in text  # eval fails in the same way
    try:
        ast.literal_eval(tree)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return isinstance(tree.body, ast.Name)  # one name: eval does not find it, or finds something that is no answer
    return True


def is_formula(text: str) -> bool:
    """Check whether sympy may parse a text: numbers, one-word names, four operations, small powers, elementary functions.

    >>> is_formula("3*x**2 + sin(x)/2 + C"), is_formula("().__class__"), is_formula("9**9**9"), is_formula("5!")
    (True, False, False, False)
    """
    tree = _parsed(text) if len(text) <= MAX_CHARS else None
    return tree is not None and all(map(_is_harmless, ast.walk(tree.body)))


def _parsed(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_harmless(node: ast.AST) -> bool:
    """Check whether a formula may hold this node; the nodes below it are checked separately."""
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float) and len(repr(value)) <= _MAX_DIGITS
        case ast.Name(id=name):
            return "_" not in name
        case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]):
            return name in _FUNCTIONS
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return not any(isinstance(below, ast.Pow) for below in ast.walk(base)) and _is_small(exponent)
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Load, *_OPERATORS))


def _is_small(exponent: ast.expr) -> bool:
    """Check whether an exponent is cheap: made of variables and numbers up to ``MAX_EXPONENT``, without a power."""
    match exponent:
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _is_small(operand)
        case ast.Constant(value=int() | float() as value):
            return abs(value) <= MAX_EXPONENT
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _is_small(left) and _is_small(right)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant() | ast.Name() as right):  # a fraction below would multiply
            return _is_small(left) and _is_small(right)
        case ast.BinOp(left=ast.Constant() as left, op=ast.Mult(), right=ast.Name() as right):
            return _is_small(left) and _is_small(right)
        case ast.Name(id=name):
            return "_" not in name
    return False

"""A calculator as a plain Python function."""

from rapo_rllib.tools.calculator import Calculator


def calculator(expression: str) -> str:
    """Works out one operation on two numbers.

    Args:
        expression: Such as 3 + 5.
    """
    return Calculator().run(expression).text

import pytest

from rapo_rllib.envs.evaluated_answers import MAX_CHARS, is_formula, is_literal

ATTACKS = (
    "__import__('os').system('true')",
    "().__class__.__bases__[0].__subclasses__()",
    "[x for x in (1,)]",
    "(lambda: 1)()",
    "exec('x = 1')",
    "open('/etc/passwd')",
    "f'{open}'",
    "9**9**9**9",
    "9**(64/(1/64/64/64/64))",
    "'a' * 10**10",
    "[0] * 10**10",
    "x := 1",
    "1 if print() else 2",
    "print()",
)


@pytest.mark.parametrize("text", ATTACKS)
def test_what_does_more_than_to_make_a_value_is_neither(text: str) -> None:
    assert not is_formula(text)
    assert not is_literal(text) or text == "x := 1"  # which eval cannot read


@pytest.mark.parametrize(
    "text", ["[['Q', '_'], ['_', 'Q']]", "1 2 3\n4 5 6", "ABCDA", "-3", "('a', 1.5)", "", "None", "1 + 2j"]
)
def test_values_and_what_is_no_python_are_literals(text: str) -> None:
    assert is_literal(text)


@pytest.mark.parametrize(
    "text",
    [
        "57*(72 + 32 - 98) + 45",
        "-4*x**6 + 8*x**2/3 + C",
        "x*asin(2*x) + sqrt(1 - 4*x**2)/2 + C",
        "exp(2*x)",
        "x**(1/2)",
        " 4 ",
        "2**(3*x)",
    ],
)
def test_formulas(text: str) -> None:
    assert is_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5!",
        "sin x",
        "x**65",
        "(x**9)**9",
        "2**x**2",
        "1" * 41,
        "sqrt('x')",
        "sqrt(x, 2)",
        "Integral(x)",
        "__debug__",
        "x.n",
        "True",
        "a@b",
        "7 % 3",
    ],
)
def test_no_formulas(text: str) -> None:
    assert not is_formula(text)


def test_long_answers_are_not_looked_at() -> None:
    assert is_literal("1" * MAX_CHARS) and not is_literal("'" + "a" * MAX_CHARS + "'")
    assert not is_formula("+".join(["1"] * MAX_CHARS))
    assert not is_formula("(" * 900 + "1" + ")" * 900)

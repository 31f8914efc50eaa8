import threading
import time

import pytest

from rapo_rllib.envs.math_equality import MathWorker
from rapo_rllib.envs.scoring import SCORERS, Score, math_equal, normalized, scorer_for, token_f1
from rapo_rllib.types import Question


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("18", "18"),
        (" 18. ", "18"),
        ("18.0", "18"),
        ("$18", "18"),
        ("\\$18", "18"),
        ("18 dollars", "18"),
        ("17\\text{ apples}", "17"),
        ("1,080", "1080"),
        ("$1,200.50", "1200.5"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("50%", "50"),
        ("50\\%", "0.5"),
        ("0.5", "50%"),
        ("10%", "10%"),
        ("1e3", "1000"),
        ("3/4", "0.75"),
        ("2/4", "\\frac{1}{2}"),
        ("The answer is 5.", "5"),
        ("5^{2}", "25"),
        ("x+1", "1+x"),
        ("-6+3\\sqrt{3}", "3\\sqrt{3} - 6"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"),
        ("x=5", "5"),
        ("\\text{Evelyn}", "\\text{Evelyn}"),
    ],
)
def test_equal(predicted: str, gold: str) -> None:
    assert math_equal(predicted, gold)


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("17", "18"),
        ("180", "18"),
        ("-18", "18"),
        ("", "18"),
        ("18", ""),
        ("0.333", "1/3"),
        ("10%", "1000%"),
        ("5 or 6", "5"),
        ("5 apples and 3 pears", "5"),
        ("seventeen", "17"),
        ("1/0", "1"),
        # a calculation that was not carried out is no answer
        ("12 + 5", "17"),
        ("8/2", "4"),
        ("\\frac{8}{2}", "4"),
        ("3\\times 4", "12"),
        ("(1+2)*3", "9"),
        ("1/4 + 1/4", "1/2"),
        ("x+1", "x+2"),
        ("\\{", "5"),
        ("9" * 5000, "\\pi"),
    ],
)
def test_not_equal(predicted: str, gold: str) -> None:
    assert not math_equal(predicted, gold)


def test_an_endless_comparison_is_given_up_from_any_thread() -> None:
    worker = MathWorker(timeout_s=1.0)
    found = []

    def compare() -> None:
        found.append(worker.equal("x+1", "1+x"))
        started = time.monotonic()
        found.append(worker.equal("9^{9^{9^{9^9}}}", "3\\sqrt{3}"))
        found.append(time.monotonic() - started < 10)
        found.append(worker.equal("x+1", "1+x"))

    thread = threading.Thread(target=compare)
    thread.start()
    thread.join(timeout=60)
    worker.close()
    assert found == [True, False, True, True]


def test_normalized() -> None:
    assert normalized("The  Beatles' (1962) an act") == "beatles 1962 act"


@pytest.mark.parametrize(
    ("predicted", "gold", "f1"),
    [
        ("Free Guy", "free guy.", 1.0),
        ("the film Free Guy", "Free Guy", 0.8),  # precision 2/3, recall 1: 2 * 2/3 / (5/3)
        ("a a b b", "b c", 2 * 1 / (2 + 2)),  # articles go: "b b" and "b c" share one word
        ("Paris", "London", 0.0),
        ("yes", "yes", 1.0),
        ("yes it is", "yes", 0.0),
        ("", "x", 0.0),
    ],
)
def test_token_f1(predicted: str, gold: str, f1: float) -> None:
    assert token_f1(predicted, gold) == pytest.approx(f1)


def test_the_best_accepted_answer_counts() -> None:
    question = Question("q", "?", "New York City", aliases=("NYC", "Big Apple"))
    assert SCORERS["qa"]("the Big Apple", question) == Score(1.0, True)
    assert SCORERS["qa"]("York City", question) == Score(pytest.approx(0.8), False)  # P 1, R 2/3
    assert SCORERS["qa_em"]("nyc", question) == Score(1.0, True)
    assert SCORERS["qa_em"]("York City", question) == Score(0.0, False)
    assert SCORERS["qa_em"]("the", Question("q", "?", "a")) == Score(0.0, False)
    assert SCORERS["math"]("8", Question("q", "?", "7", aliases=("8.0",))) == Score(1.0, True)


def test_auto_goes_by_the_source() -> None:
    assert scorer_for("auto", Question("q", "?", "x", source="train_10k/qa")) is SCORERS["qa"]
    assert scorer_for("auto", Question("q", "?", "x", source="train_10k/math")) is SCORERS["math"]
    assert scorer_for("auto", Question("q", "?", "x")) is SCORERS["math"]

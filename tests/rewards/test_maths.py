import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_table import REFUSED, REWARDED, RIGHT, WRONG, judged_otherwise, math500, must_fail, must_pass, rate, rewritten
from maths_cases import CASES

from rapo_rllib.rewards.latex import one_list, tidied
from rapo_rllib.rewards.maths import MAX_CHARS, math_score
from rapo_rllib.rewards.quantities import same_number, split_unit
from rapo_rllib.rewards.score import Score
from rapo_rllib.rewards.symbolic import Workers, comparable
from rapo_rllib.rewards.worded_answers import same_words
from rapo_rllib.types import Question

BOMB = "9^{9^{9^{9^9}}}"


@pytest.mark.parametrize(("why", "gold", "answers"), RIGHT, ids=[f"{why}|{gold:.30}" for why, gold, _ in RIGHT])
def test_right_answers(why: str, gold: str, answers: list[str]) -> None:
    assert judged_otherwise([(answer, gold) for answer in answers], right=True) == []


@pytest.mark.parametrize(("why", "gold", "answers"), WRONG, ids=[f"{why}|{gold:.30}" for why, gold, _ in WRONG])
def test_wrong_answers(why: str, gold: str, answers: list[str]) -> None:
    assert judged_otherwise([(answer, gold) for answer in answers], right=False) == []


@pytest.mark.parametrize(("predicted", "gold", "equal", "why"), CASES, ids=[f"{c[0]:.30}|{c[1]:.30}" for c in CASES])
def test_case(predicted: str, gold: str, equal: bool, why: str) -> None:
    assert judged_otherwise([(predicted, gold)], right=equal) == [], why


def test_enough_cases_and_each_once() -> None:
    assert len(must_pass()) >= 700
    assert len(must_fail()) >= 1000
    assert not set(must_pass()) & set(must_fail())
    assert len({case[:2] for case in CASES}) == len(CASES)


def test_the_docs_tell_how_many_are_judged_otherwise(docs: str) -> None:
    """The tests above hold the others."""
    assert judged_otherwise(REFUSED, right=True) == REFUSED and judged_otherwise(REWARDED, right=False) == REWARDED
    for line in (rate("wrongly refused", REFUSED, must_pass()), rate("wrongly rewarded", REWARDED, must_fail())):
        assert line in docs


@pytest.fixture(scope="module")
def docs() -> str:
    return (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("question", "gold", "copied", "right"),
    [
        ("Expand $(x+1)(x+2)$.", "x^2+3x+2", "(x+1)(x+2)", "2+3x+x^2"),
        ("Factor $x^2 + 3x + 2$.", "(x+1)(x+2)", "x^2+3x+2", "(x+2)(x+1)"),
        ("Simplify $\\sqrt{117}$.", "3\\sqrt{13}", "\\sqrt{117}", "\\sqrt{13}\\cdot3"),
        ("Reduce $\\frac{4}{6}$ to lowest terms.", "\\frac{2}{3}", "\\frac46", "2/3"),
        ("Write 0.25 as a fraction.", "\\frac{1}{4}", "0.25", "1/4"),
        ("Which is larger, $2x+3$ or $2x$?", "2x+3", "2x", "2x+3"),
        ("What is $5 \\times 3$?", "15", "5 \\times 3", "15"),
        ("Tom has 15 apples. How many?", "15", "3 5", "15 apples"),
    ],
)
def test_what_the_question_says_is_no_answer(question: str, gold: str, copied: str, right: str) -> None:
    asked = Question("q", question, gold)
    assert not math_score(copied, asked).correct
    assert math_score(right, asked).correct


def test_any_accepted_answer_counts() -> None:
    question = Question("q", "?", "7", aliases=("8.0",))
    assert [math_score(answer, question).value for answer in ("7", "8", "9")] == [1.0, 1.0, 0.0]
    assert math_score("8", question).correct


def test_golds_of_math500_equal_themselves_also_when_rewritten(shared_data: Path) -> None:
    pairs = math500(shared_data / "eval" / "math500.jsonl")
    assert len(pairs) == 1000 and sum(rewritten(gold) != f"${gold}$" for _, gold in pairs[500:]) > 90
    assert judged_otherwise(pairs, right=True) == []


def test_answers_to_other_questions_are_wrong(shared_data: Path) -> None:
    accepted = sorted({gold for _, gold in math500(shared_data / "eval" / "math500.jsonl")})
    pairs = [(accepted[i], accepted[(i + shift) % len(accepted)]) for shift in (1, 100) for i in range(0, len(accepted), 4)]
    # a unit may be left out; then an angle of 12 degrees and the number 12 are the same answer
    assert [(a, b) for a, b in judged_otherwise(pairs, right=False) if a not in b and b not in a] == []


PIECES = [
    "\\text{",
    "\\{x|",
    "\\{x:=",
    "a ",
    "1 a ",
    "1,",
    "$",
    "-$",
    "\\frac1",
    "(",
    ")",
    "A) ",
    "\\sqrt",
    "and ",
    "^{\\circ",
    "}",
    "1/",
]


@pytest.mark.parametrize("piece", PIECES)
def test_nothing_that_a_model_repeats_is_slow(piece: str) -> None:
    started = time.monotonic()
    for text in ((piece * MAX_CHARS)[:MAX_CHARS], (piece * MAX_CHARS)[: MAX_CHARS - 1] + "1", "1" + piece * 30):
        check_stages(text)
    assert time.monotonic() - started < 60


@given(text=st.text("\\{}$^_%()[]|<>=.,/+-:  0159abxC°²½√\n") | st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_answer_is_an_error(text: str) -> None:
    check_stages(text)


def check_stages(text: str) -> None:
    """All that is done before math-verify, whose worker takes any error for "not equal"."""
    left = tidied(text)
    value, _ = split_unit(one_list(left))
    assert same_words(left, "\\text{east}") in (True, False) and same_words("5", left) in (True, False, None)
    assert same_number(value, "5") in (True, False, None) and same_number("5", value) in (True, False, None)


@pytest.mark.parametrize(
    "bomb",
    [BOMB, "\\binom{10^9}{5 \\cdot 10^8}", "(10^7)!", "\\sum_{k=1}^{10^{12}} \\sin(k^k)", "\\sqrt{" * 150 + "2" + "}" * 150],
)
def test_bombs_cost_no_more_than_their_time(bomb: str) -> None:
    started = time.monotonic()
    assert judged_otherwise([(bomb, "3\\sqrt{3}")], right=False) == []
    assert time.monotonic() - started < 120  # with the start of the processes


def test_bad_answers_do_not_hold_up_the_others_and_leave_nothing() -> None:
    before, workers = psutil.Process().children(), Workers(seconds=30)
    with ThreadPoolExecutor(12) as threads:
        bad = [threads.submit(workers.equal, BOMB, f"{i}^{{10}}") for i in range(2, 5)]
        good = [threads.submit(workers.equal, f"x+{i}", f"{i}+x") for i in range(10)]
        assert all(future.result(timeout=300) for future in good)
        assert not any(future.done() for future in bad)
        started = [process for process in psutil.Process().children() if process not in before]
        assert len(started) == 4
        for process in started:  # as the system does where memory is short; one that is idle, too
            process.kill()
        assert [future.result(timeout=300) for future in bad] == [None] * 3
        psutil.wait_procs(started, timeout=60)  # one that is idle could be asked before it has ended
        assert list(threads.map(workers.equal, [f"x+{i}" for i in range(20)], ["1+x"] * 20)) == [i == 1 for i in range(20)]
    assert all(process.status() != psutil.STATUS_ZOMBIE for process in psutil.Process().children())


def test_a_worker_that_is_killed_before_it_is_ready_is_started_again() -> None:
    """Three times, and then that is said, not that math-verify is missing."""
    for kills, expected in ((1, True), (3, "ended a worker 3 times .*signal 9")):
        before, workers = {process.pid for process in psutil.Process().children()}, Workers()
        with ThreadPoolExecutor(1) as threads:
            found = threads.submit(workers.equal, "x+1", "1+x")
            for _ in range(kills):
                while not (new := [one for one in psutil.Process().children() if one.pid not in before]):
                    time.sleep(0.001)
                before.add(new[0].pid)
                new[0].kill()
            if expected is True:
                assert found.result(timeout=300) is True
                continue
            with pytest.raises(RuntimeError, match=str(expected)):
                found.result(timeout=300)


def test_brackets_that_take_minutes_to_read_are_not_read() -> None:
    """Each takes twice the time of the one in it: eight are many for an answer."""
    assert comparable("((((((((x))))))))", "x")
    for deep in ("(" * 9 + "x" + ")" * 9, "\\sqrt{" * 9 + "x" + "}" * 9):
        assert not comparable(deep, "\\sqrt{x}")


def test_an_answer_that_could_not_be_graded_is_counted() -> None:
    question = Question("q", "?", "2^{10}")
    assert math_score(BOMB, question) == Score(0.0, False, failure="math/timeout")
    assert math_score("2^{11}", question).failure == ""
    assert math_score("3\\sqrt{3}", replace(question, answer="2\\sqrt{2}", aliases=("\\sqrt{27}",))).correct


FORKED = """
import os
from rapo_rllib.rewards.symbolic import symbolically_equal

def judged(name):
    pairs = [(f"{name} x + {number}", f"{number} + x {name}") for number in range(20)]
    return all(symbolically_equal(*pair) for pair in pairs)

assert judged("b")
child = os.fork()
right = judged("y" if child else "z")
if child == 0:
    os._exit(not right)
assert right and os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_has_workers_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=120)

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maths_cases import CASES

from rapo_rllib.rewards.latex import one_list, tidied
from rapo_rllib.rewards.maths import MAX_CHARS, math_equal, math_score
from rapo_rllib.rewards.number_answers import same_number
from rapo_rllib.rewards.once import Once
from rapo_rllib.rewards.symbolic import Worker, WorkerPool
from rapo_rllib.rewards.units import split_unit
from rapo_rllib.rewards.worded_answers import same_words
from rapo_rllib.types import Question

BOMB = "9^{9^{9^{9^9}}}"


@pytest.mark.parametrize(("predicted", "gold", "equal", "why"), CASES, ids=[f"{c[0]:.30}|{c[1]:.30}" for c in CASES])
def test_case(predicted: str, gold: str, equal: bool, why: str) -> None:
    assert math_equal(predicted, gold) == equal, why


def test_enough_cases_and_each_once() -> None:
    assert len({case[:2] for case in CASES}) == len(CASES) >= 100
    assert sum(equal for _, _, equal, _ in CASES) >= 50 <= sum(not equal for _, _, equal, _ in CASES)


def test_any_accepted_answer_counts() -> None:
    question = Question("q", "?", "7", aliases=("8.0",))
    assert [math_score(answer, question).value for answer in ("7", "8", "9")] == [1.0, 1.0, 0.0]
    assert math_score("8", question).correct


def math500(shared_data: Path) -> list[str]:
    lines = (shared_data / "eval" / "math500.jsonl").read_text().splitlines()
    return [json.loads(line)["answer"] for line in lines]


def rewritten(gold: str) -> str:
    """Another way to write the same: sized brackets, display fractions, boxes of text, blanks, signs of mathematics."""
    text = gold.replace("\\left", "").replace("\\right", "").replace("\\frac", "\\dfrac").replace("\\text", "\\mbox")
    text = re.sub(r"\\dfrac\{(\d)\}\{(\d)\}", r"\\frac\1\2", text)
    text = re.sub(r"(?<=[)\]\w]) ?([+-]) ?(?=\w)", r"\\, \1 ", text)
    return text + "." if "$" in text else f"${text}$"


def test_golds_of_math500_equal_themselves_also_when_rewritten(shared_data: Path) -> None:
    golds = math500(shared_data)
    assert len(golds) == 500 and sum(rewritten(gold) != f"${gold}$" for gold in golds) > 90
    assert [gold for gold in golds if not (math_equal(gold, gold) and math_equal(rewritten(gold), gold))] == []


def test_answers_to_other_questions_are_wrong(shared_data: Path) -> None:
    golds = sorted(set(math500(shared_data)))
    pairs = [(golds[i], golds[(i + shift) % len(golds)]) for shift in (1, 100) for i in range(0, len(golds), 4)]
    # a unit may be left out; then an angle of 12 degrees and the number 12 are the same answer
    assert [(a, b) for a, b in pairs if math_equal(a, b) and a not in b and b not in a] == []


def test_an_endless_comparison_is_given_up_from_any_thread() -> None:
    worker = Worker()
    found = []

    def compare() -> None:
        found.append(worker.equal("x+1", "1+x", 10))
        started = time.monotonic()
        found.append(worker.equal(BOMB, "3\\sqrt{3}", 0.5))
        found.append(time.monotonic() - started < 5)
        found.append(worker.equal("x+1", "1+x", 10))

    thread = threading.Thread(target=compare)
    thread.start()
    thread.join(timeout=60)
    worker.stop()
    assert found == [True, False, True, True]


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
    assert time.monotonic() - started < 2


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
    assert not math_equal(bomb, "3\\sqrt{3}", 1.0)
    assert time.monotonic() - started < 15  # with the start of a worker


def test_one_bad_answer_does_not_hold_up_the_others() -> None:
    pool = WorkerPool(2)
    with ThreadPoolExecutor(8) as threads:
        warm = [threads.submit(pool.equal, "x+1", "1+x", 30.0) for _ in range(2)]
        assert all(future.result() for future in warm)
        bad = threads.submit(pool.equal, BOMB, "3\\sqrt{3}", 6.0)
        good = [threads.submit(pool.equal, f"x+{i}", f"{i}+x", 30.0) for i in range(10)]
        assert all(future.result() for future in good)
        assert not bad.done()
        assert not bad.result()
    pool.close()


def test_a_worker_that_was_killed_is_replaced() -> None:
    worker = Worker()
    assert worker.equal("x+1", "1+x", 10)
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    assert worker.equal("x+1", "1+x", 10)
    worker.stop()


def test_work_is_done_once() -> None:
    calls = []

    def slow(text: str) -> int:
        calls.append(text)
        time.sleep(0.1)
        if text == "bad":
            raise ValueError(text)
        return len(text)

    once = Once(slow, size=2)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(once, ["abc"] * 8)) == [3] * 8
        failed = [threads.submit(once, "bad") for _ in range(8)]
        assert {str(future.exception()) for future in failed} == {"bad"}
    assert calls == ["abc", "bad"]
    with pytest.raises(ValueError, match="bad"):
        once("bad")  # a failure is not kept
    assert [once(text) for text in ("a", "ab", "abc")] == [1, 2, 3]  # of three only two are kept
    assert calls == ["abc", "bad", "bad", "a", "ab", "abc"]

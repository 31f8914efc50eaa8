"""Which questions count as the same, and what is done about evaluation questions."""

import pytest
from buffer_helpers import experts

from rapo_rllib.buffer.build import ensure_built
from rapo_rllib.buffer.leak_guard import LeakGuard, normalised
from rapo_rllib.types import StepTrace

SAME = [
    ("What is 3 + 5?", "what is  3 + 5"),
    ("Who wrote “Faust”?", 'who wrote "faust"'),
    ("Tom’s cat — how old?!", "tom's cat - how old"),
    ("Ann has 3 apples, and buys 4.", "Ann has 3 apples and buys 4"),
    ("ﬁve ＋ １", "five + 1"),
    ("x²", "x^2"),
    ("H₂O", "h_2o"),
    ("1½ litres", "1 1/2 litres"),
    ("Straße…", "strasse"),
]
DIFFERENT = [
    ("What is 3 + 5?", "What is 3 - 5?"),
    ("What is 3 + 5?", "What is 35?"),
    ("What is 1.5 + 2?", "What is 15 + 2?"),
    ("What is 1,5?", "What is 15?"),
    ("What is 5!?", "What is 5?"),
    ("What is n!?", "What is n?"),
    ("What is 2²?", "What is 22?"),
    ("What is x₁2?", "What is x12?"),
    ("What is 1½?", "What is 11/2?"),
    ("Find f(2,3).", "Find f(23)."),
    ("The ratio 3 : 4", "The ratio 3 4"),
    ("3 + ? = 5", "3 + = 5"),
    ("-3. What is its square?", "3. What is its square?"),
    ("$\\frac{1}{2}$", "$\\frac{12}{}$"),
    ("Is a < b?", "Is a > b?"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_question_otherwise_written(one, other):
    assert normalised(one) == normalised(other)
    assert LeakGuard([one]).leaks(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_problems_do_not_collide(one, other):
    assert normalised(one) != normalised(other)
    assert not LeakGuard([one]).leaks(other)


def test_real_problems_do_not_collide(shared_data):
    import gzip
    import json

    with gzip.open(shared_data / "math" / "math_train.jsonl.gz", "rt") as file:
        problems = {" ".join(json.loads(line)["problem"].split()) for line in file}
    assert len({normalised(problem) for problem in problems}) >= len(problems) - 1


def test_questions_without_text_say_nothing():
    guard = LeakGuard(["", " "])
    assert len(guard) == 0
    assert not guard.leaks("")


def test_what_leaks_is_left_out_and_counted():
    first, second = experts(2)
    guard = LeakGuard([first.question.text.upper()])
    assert list(guard.keep([first, second, first])) == [second]
    assert guard.refused == {first.question.text: 2}
    trace = StepTrace("1", second.question.text, "", "a", 1.0)
    assert list(guard.keep([trace])) == [trace]


def test_a_build_leaves_them_out_and_a_buffer_that_has_them_is_refused(make_buffer):
    evaluation = [expert.question.text for expert in experts(2)]
    guard = LeakGuard(evaluation)
    clean = make_buffer(collection="clean")
    assert ensure_built(clean, lambda: experts(6), guard=guard) == 8
    assert guard.refused.total() == 2

    leaky = make_buffer()
    assert ensure_built(leaky, lambda: experts(6)) == 12
    message = r"holds 4 step traces of 2 evaluation questions, such as 'Ann has .*`rllib buffer stats --evaluation FILE"
    with pytest.raises(ValueError, match=message):
        ensure_built(leaky, None, guard=guard)
    assert ensure_built(leaky, None, guard=LeakGuard([""])) == 12  # nothing is known, so nothing is said

import random
import re
import string
from collections import Counter

import pytest
from qa_cases import CASES

from rapo_rllib.rewards.qa import normalized, qa_em_score, qa_score, token_f1
from rapo_rllib.types import Question


@pytest.mark.parametrize(("predicted", "accepted", "f1", "exact", "why"), CASES, ids=[f"{c[0]}|{c[1][0]}" for c in CASES])
def test_case(predicted: str, accepted: list[str], f1: float, exact: bool, why: str) -> None:
    question = Question("q", "?", accepted[0], aliases=tuple(accepted[1:]))
    score = qa_score(predicted, question)
    assert score.value == pytest.approx(f1), why
    assert score.correct == exact, why
    assert qa_em_score(predicted, question).value == float(exact), why


def test_enough_cases_and_each_once() -> None:
    assert len({(predicted, *accepted) for predicted, accepted, *_ in CASES}) == len(CASES) >= 50


def test_the_order_of_accepted_answers_says_nothing() -> None:
    for predicted, accepted, f1, *_ in CASES:
        assert max(token_f1(predicted, gold) for gold in reversed(accepted)) == pytest.approx(f1)


def squad(text: str) -> str:
    """SQuAD's evaluation script, in its own order."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def test_ascii_words_are_normalised_and_scored_as_in_squads_evaluation() -> None:
    rng, words = random.Random(0), ["The", "a", "an", "U.S.", "pike's", "Peak", "(1962)", "1,000", "x-y", "no", "b/c", "end."]
    for _ in range(500):
        a, b = (" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in "ab")
        if not squad(a) or not squad(b):
            continue
        assert normalized(a) == squad(a)
        common = sum((Counter(squad(a).split()) & Counter(squad(b).split())).values())
        whole = "no" in (squad(a), squad(b)) and squad(a) != squad(b)
        expected = 0.0 if whole else 2 * common / (len(squad(a).split()) + len(squad(b).split()))
        assert token_f1(a, b) == pytest.approx(expected)

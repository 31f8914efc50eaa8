import random
import re
import string
from collections import Counter
from dataclasses import replace

import pytest
from qa_cases import CASES

from rapo_rllib.rewards.qa import NORMALIZATIONS, normalized, qa_em_score, qa_score, token_f1
from rapo_rllib.rewards.score import Episode
from rapo_rllib.rewards.scorers import shared_scorer
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


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("-5", "5"),
        ("5", "−5"),
        ("–5", "5"),
        ("-$5", "$5"),
        ("-.5", ".5"),
        ("it fell by -5 points", "it fell by 5 points"),
        ("C++", "C"),
        ("C", "C#"),
        ("C++", "C#"),
        ("A+", "A"),
        ("A-", "A"),
        ("AB−", "AB+"),
        ("Disney+", "Disney"),
        ("(A-)", "A"),
        ("1/2", "12"),
        ("6:30", "630"),
        ("7-5", "75"),
        ("10^6", "106"),
        ("5+3", "53"),
        ("<5", "5"),
        (">=5", "5"),
        ("<-5", "-5"),
    ],
)
def test_signs_are_kept_and_dropped_by_name(predicted: str, gold: str) -> None:
    question = Question("q", "?", gold)
    for name in ("qa", "qa_em", "auto"):
        asked = replace(question, source="x/qa")
        kept, dropped = (
            shared_scorer({"name": name, "options": {"normalization": rule}})(predicted, asked, Episode(()))
            for rule in ("signs", "squad")
        )
        assert shared_scorer(name)(predicted, asked, Episode(())) == kept
        assert not kept.correct and kept.value < 1
        assert dropped.correct == (squad(predicted) == squad(gold)) and (dropped.value == 1) == dropped.correct
    assert token_f1(gold, gold) == 1 == qa_em_score(gold, question).value


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("5", "+5"),
        ("#5", "5"),
        ("well-known", "wellknown"),
        ("pre- and post-war", "pre and postwar"),
        ("- Paris", "Paris"),
        ("1,000", "1000"),
        ("1998–2000", "1998-2000"),
        ("−5", "-5"),
        ("C++.", "c++"),
        ("Paris - France", "Paris France"),
    ],
)
def test_what_is_no_sign_goes(predicted: str, gold: str) -> None:
    assert qa_em_score(predicted, Question("q", "?", gold)).correct and token_f1(predicted, gold) == 1


def test_an_unknown_normalization_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scorer\.options\.normalization = 'bleu': must be one of signs, squad"):
        shared_scorer({"name": "qa", "options": {"normalization": "bleu"}})


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
        assert normalized(a) == squad(a) == NORMALIZATIONS["squad"](a)
        common = sum((Counter(squad(a).split()) & Counter(squad(b).split())).values())
        whole = "no" in (squad(a), squad(b)) and squad(a) != squad(b)
        expected = 0.0 if whole else 2 * common / (len(squad(a).split()) + len(squad(b).split()))
        assert token_f1(a, b) == pytest.approx(expected)

"""The order of questions, and that it resumes."""

from __future__ import annotations

import pytest

from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question

QUESTIONS = [Question(str(i), "") for i in range(10)]


def ids(questions: list[Question]) -> list[str]:
    return [question.id for question in questions]


def test_every_epoch_has_every_question_once_in_a_new_order() -> None:
    cursor = QuestionCursor(QUESTIONS, seed=1)
    first, second = ids(cursor.take(10)), ids(cursor.take(10))
    assert sorted(first) == sorted(second) == sorted(ids(QUESTIONS))
    assert first != second and cursor.position == 20


@pytest.mark.parametrize("taken", [0, 3, 9, 10, 13])
def test_resuming_gives_the_batch_that_would_have_come(taken: int) -> None:
    cursor = QuestionCursor(QUESTIONS, seed=1)
    cursor.take(taken)
    resumed = QuestionCursor(QUESTIONS, seed=99)
    resumed.set_state(cursor.get_state())
    assert ids(resumed.take(15)) == ids(cursor.take(15))


def test_another_data_set_is_refused() -> None:
    state = QuestionCursor(QUESTIONS).get_state()
    with pytest.raises(ValueError, match="made with 10 training questions, now there are 9"):
        QuestionCursor(QUESTIONS[:9]).set_state(state)

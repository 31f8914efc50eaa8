"""Questions by an agent that fails: what is kept of it, and when it is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.agents.agent import AnsweredQuestion, Attempt
from rapo_rllib.agents.asking import Progress, ask
from rapo_rllib.agents.journal import Journal
from rapo_rllib.errors import AgentError
from rapo_rllib.types import Question

QUESTIONS = [Question(f"q{index}", "?", "1") for index in range(8)]
SIZE = 16


class Failing:
    """Fails at so many attempts of each question."""

    def __init__(self, *failed: int) -> None:
        self.failed, self.asked = iter(failed), list[str]()

    def answers(self, questions: Iterable[Question], on_attempt: Callable[[], None]) -> Iterator[AnsweredQuestion]:
        for question in questions:
            failed = next(self.failed)
            self.asked.append(question.id)
            good, bad = Attempt(("a",), 1.0, "answer", tokens=2), Attempt((), 0.0, "error", "gone")
            for _ in range(SIZE):
                on_attempt()
            yield AnsweredQuestion(question, (good,) * (SIZE - failed) + (bad,) * failed)


def asked(folder: Path, agent: Any, questions: list[Question] = QUESTIONS) -> Progress:
    progress = Progress(SIZE * len(questions))
    with Journal(folder, {}, SIZE, SIZE // 2) as journal:
        ask(agent, ("m", ""), questions, journal, progress, lambda progress: None)
    return progress


def test_what_failed_is_counted_and_most_of_a_question_asks_it_again(tmp_path: Path) -> None:
    progress = asked(tmp_path, Failing(0, 16, 16, 8, 16, 16, 9, 0))
    assert (progress.ended, progress.failed, progress.tokens) == (128, 81, 2 * (128 - 81))
    again = Failing(*[0] * 5)
    asked(tmp_path, again)
    assert again.asked == ["q1", "q2", "q4", "q5", "q6"]


def test_a_command_whose_last_question_always_fails_ends(tmp_path: Path) -> None:
    asked(tmp_path, Failing(0, 16), QUESTIONS[:2])
    assert asked(tmp_path, Failing(16), QUESTIONS[:2]).failed == 16


@pytest.mark.parametrize(
    ("failed", "told", "left"),
    [
        ([0, 16, 16, 16, 0], "48 attempts in a row failed: gone", 7),  # the agent, or the environment
        ([16, 16], "not one attempt at 2 questions came about: gone", 2),
    ],
)
def test_who_is_gone_ends_it(tmp_path: Path, failed: list[int], told: str, left: int) -> None:
    questions = QUESTIONS if len(failed) > 2 else QUESTIONS[:2]
    with pytest.raises(AgentError, match=told):
        asked(tmp_path, Failing(*failed), questions)
    again = Failing(*[0] * 8)
    asked(tmp_path, again, questions)
    assert len(again.asked) == left

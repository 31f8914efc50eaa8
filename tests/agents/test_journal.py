"""The files of a command: whole after a kill at any byte, and refused where they are of something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.agents.agent import AnsweredQuestion, Attempt
from rapo_rllib.agents.journal import SETTINGS, TRANSCRIPTS, Journal, sum_of_questions
from rapo_rllib.envs.base import LazyQuestions
from rapo_rllib.types import Question

MADE_OF: dict[str, Any] = {"models": {"m": {"temperature": 0.7}}, "questions": "1f"}


def answered(index: int, failed: int = 0) -> AnsweredQuestion:
    question = Question(f"q{index}", f"Wie groß ist {index}?\udcff", "8", ("acht",))
    good = Attempt((f"<python>{index}</python>\n<result>\n8\n</result>\n", "<answer>8</answer>"), 1.0, "answer", tokens=9)
    bad = Attempt((), 0.0, "error", "env.step failed", retrieved=("t",), f1=0.5)
    return AnsweredQuestion(question, (good,) * (3 - failed) + (bad,) * failed)


def write(folder: Path, *questions: AnsweredQuestion, may_fail: int = 0, **made_of: Any) -> list[str]:
    """Add to the files of a folder; returns what was finished before."""
    with Journal(folder, MADE_OF | made_of, 3, may_fail) as journal:
        found = [f"q{index}" for index in range(9) if ("m", "b", f"q{index}") in journal]
        for question in questions:
            journal.add("m", "b", question)
            assert journal.read(("m", "b", question.question.id)) == question
    return found


def test_what_was_written_is_read_and_not_asked_again(tmp_path: Path) -> None:
    assert write(tmp_path, answered(0), answered(1)) == []
    assert write(tmp_path) == ["q0", "q1"]
    with Journal(tmp_path, MADE_OF, 3) as journal:
        assert [journal.read(("m", "b", f"q{index}")) for index in (1, 0)] == [answered(1), answered(0)]
        assert ("other", "b", "q0") not in journal
    rows = [json.loads(line) for line in (tmp_path / TRANSCRIPTS).read_text().splitlines()]
    assert len(rows) == 6 and (rows[0]["question_id"], rows[0]["gold"], rows[0]["reward"]) == ("q0", ["8", "acht"], 1.0)


def test_cut_at_any_byte_it_goes_on_to_the_same_file(tmp_path: Path) -> None:
    write(tmp_path / "whole", *map(answered, range(3)))
    content = (tmp_path / "whole" / TRANSCRIPTS).read_bytes()
    question = len(content) // 3
    for cut in range(0, len(content) + 1, 31):
        folder, whole = tmp_path / str(cut), cut // question
        write(folder)
        (folder / TRANSCRIPTS).write_bytes(content[:cut])
        assert write(folder, *map(answered, range(whole, 3))) == [f"q{index}" for index in range(whole)]
        assert (folder / TRANSCRIPTS).read_bytes() == content


def test_only_a_file_of_which_something_is_cut_is_written_anew(tmp_path: Path) -> None:
    write(tmp_path, answered(0), answered(1, failed=1))
    first = (tmp_path / TRANSCRIPTS).stat().st_ino
    write(tmp_path, may_fail=1)
    assert (tmp_path / TRANSCRIPTS).stat().st_ino == first
    write(tmp_path)
    assert (tmp_path / TRANSCRIPTS).stat().st_ino != first and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("may_fail", "finished"), [(0, ["q0"]), (1, ["q0", "q1"]), (3, ["q0", "q1", "q2"])])
def test_a_question_at_which_too_many_attempts_failed_is_asked_again(
    tmp_path: Path, may_fail: int, finished: list[str]
) -> None:
    assert write(tmp_path, answered(1, failed=1), answered(2, failed=2), answered(0), may_fail=may_fail) == []
    assert write(tmp_path, may_fail=may_fail) == finished
    assert len((tmp_path / TRANSCRIPTS).read_bytes().splitlines()) == 3 * len(finished)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"models": {"m": {"temperature": 0.1}}}, r"models\.m\.temperature\. Repeat that command"),
        ({"questions": "2e"}, "questions"),
        ({"models": {}}, r"models, models\.m\.temperature"),
    ],
)
def test_another_command_or_other_questions_are_refused(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    write(tmp_path, answered(0))
    with pytest.raises(ValueError, match=rf"settings.json is of another command, with other {told}"):
        write(tmp_path, answered(1), **changed)
    assert write(tmp_path) == ["q0"]
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(ValueError, match=r"holds transcripts\.jsonl of another command: name another --output"):
        write(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path, MADE_OF, 3), pytest.raises(ValueError, match="another process writes into it"):
        write(tmp_path, answered(0))


def test_other_questions_under_the_same_names_have_another_sum() -> None:
    same = Question("q0", "1 + 1?", "2", ("two",))
    others = [Question("q0", "1 + 2?", "2", ("two",)), Question("q0", "1 + 1?", "3", ("two",)), Question("q0", "1 + 1?", "2")]
    assert sum_of_questions([same]) == sum_of_questions([Question("q0", "1 + 1?", "2", ("two",))])
    assert len({sum_of_questions(each) for each in ([same], [same, same], *([other] for other in others))}) == 5


def test_questions_that_are_made_when_they_are_asked_for_are_not_all_made() -> None:
    made = list[int]()

    class Made(LazyQuestions):
        def make(self, index: int) -> Question:
            made.append(index)
            return Question(f"q{index}", "?", "1")

    assert sum_of_questions(Made(1000)) == sum_of_questions([Question("q0", "?", "1")]) and made == [0]

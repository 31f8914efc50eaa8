"""The files of an evaluation: whole after a kill at any byte, and refused where they are of something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.evaluation.journal import MADE_OF, TRANSCRIPTS, EvaluationJournal

WHAT = {"model m": {"temperature": 0.7}, "questions of b": "1f"}


def rows(index: int, samples: int = 2, agent_failed: bool = False, model: str = "m") -> list[dict[str, Any]]:
    row = {"model": model, "benchmark": "b", "question_id": f"q{index}", "text": "Wie groß ist \udcff?"}
    return [{**row, "sample": sample, "agent_failed": agent_failed and not sample} for sample in range(samples)]


def write(folder: Path, *questions: list[dict[str, Any]]) -> EvaluationJournal:
    with EvaluationJournal(folder, WHAT, 2) as journal:
        for question in questions:
            journal.add(question)
    return journal


def test_what_was_written_is_finished(tmp_path: Path) -> None:
    assert write(tmp_path, rows(0), rows(1), rows(0, model="other")).finished == {}
    journal = write(tmp_path)
    assert journal.of("m") == {("b", "q0"): rows(0), ("b", "q1"): rows(1)}
    assert journal.of("other") == {("b", "q0"): rows(0, model="other")}


def test_cut_at_any_byte_whole_questions_stay_and_the_rest_is_asked_again(tmp_path: Path) -> None:
    write(tmp_path / "whole", rows(0), rows(1), rows(2))
    content = (tmp_path / "whole" / TRANSCRIPTS).read_bytes()
    question = len(content) // 3
    for cut in range(0, len(content) + 1, 11):
        folder = tmp_path / str(cut)
        write(folder)
        (folder / TRANSCRIPTS).write_bytes(content[:cut])
        left = write(folder).finished
        assert [key[2] for key in left] == [f"q{index}" for index in range(cut // question)]
        write(folder, *(rows(index) for index in range(cut // question, 3)))
        assert (folder / TRANSCRIPTS).read_bytes() == content


def test_a_question_whose_agent_failed_is_asked_again(tmp_path: Path) -> None:
    write(tmp_path, rows(0), rows(1, agent_failed=True))
    assert list(write(tmp_path).finished) == [("m", "b", "q0")]
    assert len((tmp_path / TRANSCRIPTS).read_bytes().splitlines()) == 2


def test_another_evaluation_is_refused(tmp_path: Path) -> None:
    write(tmp_path, rows(0))
    changed = {**WHAT, "model m": {"temperature": 0.0}}
    with pytest.raises(ValueError, match=r"begun by another command: model m differ from evaluation\.json"):
        EvaluationJournal(tmp_path, changed, 2).__enter__()
    (tmp_path / MADE_OF).unlink()
    with pytest.raises(ValueError, match="holds transcripts of another evaluation: name another folder"):
        EvaluationJournal(tmp_path, WHAT, 2).__enter__()
    assert json.loads((tmp_path / TRANSCRIPTS).read_text().splitlines()[0])["question_id"] == "q0"


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with EvaluationJournal(tmp_path, WHAT, 2), pytest.raises(ValueError, match="another process is evaluating into it"):
        EvaluationJournal(tmp_path, WHAT, 2).__enter__()

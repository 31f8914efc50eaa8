"""GSM8K's annotated answers as step traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapo_rllib.envs.calculator_traces import annotated_segments, calculated
from rapo_rllib.envs.questions import Questions
from rapo_rllib.traces.recorded import read_trace_file

NATALIA = (
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n"
    "#### 72"
)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("48/2", 24.0),
        (" 2*(3+0.5) ", 7.0),
        ("-3+5", 2.0),
        (".5*4", 2.0),
        ("7//2", 3.0),
        ("7%4", 3.0),
        ("2*x", None),
        ("1/0", None),
        ("2**9999999", None),
        ("__import__('os')", None),
        ("'a'*3", None),
        ("True+1", None),
        ("3+", None),
        ("", None),
    ],
)
def test_calculated(expression: str, value: float | None) -> None:
    assert calculated(expression) == value


def test_segments_of_an_answer() -> None:
    assert annotated_segments(NATALIA) == [
        {"type": "think", "text": "Natalia sold 48/2 = "},
        {"type": "call", "text": "print(48/2)", "tool": "python"},
        {"type": "result", "text": "24"},
        {"type": "think", "text": " clips in May.\nNatalia sold 48+24 = "},
        {"type": "call", "text": "print(48+24)", "tool": "python"},
        {"type": "result", "text": "72"},
        {"type": "think", "text": " clips altogether in April and May.\n"},
        {"type": "answer", "text": "72"},
    ]


@pytest.mark.parametrize(
    "answer", ["1 + 1 = <<1+1=3>>3\n#### 3", "1 + 1 = <<1+1=2>>2", "<<a+1=2>>2\n#### 2", "1<<1=1>>\n####  "]
)
def test_wrong_calculations_and_missing_answers_are_left_out(answer: str) -> None:
    assert annotated_segments(answer) is None


def test_a_data_set_without_annotations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    with pytest.raises(ValueError, match="traces = 'annotations': no answer of the data set has"):
        list(Questions.expert_trajectories({"dataset": str(path), "traces": "annotations"}))


def test_a_row_without_a_question_is_left_out_where_such_rows_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"answer": "2"}\n{"question": "1 + 1?", "answer": "<<1+1=2>>2\\n#### 2"}\n')
    config = {"dataset": str(path), "traces": "annotations"}
    with pytest.raises(ValueError, match=r"row 1: .*skip_bad_rows: true"):
        list(Questions.expert_trajectories(config))
    (found,) = Questions.expert_trajectories({**config, "skip_bad_rows": True})
    assert found.question.text == "1 + 1?"


def test_real_gsm8k_gives_the_traces_that_were_made_of_it_elsewhere(shared_data: Path) -> None:
    config = {"dataset": str(shared_data / "math" / "gsm8k_train.jsonl.gz"), "traces": "annotations"}
    ours = {expert.question.text: expert.steps for expert in Questions.expert_trajectories(config)}
    theirs = {
        e.question.text.strip(): e.steps for e in read_trace_file(shared_data / "traces" / "gsm8k_train_human_calc.jsonl.gz")
    }
    shared = ours.keys() & theirs.keys()
    assert len(ours) > 6500
    assert len(shared) > 6500
    equal = sum(ours[text] == theirs[text] for text in shared)
    assert equal > 0.95 * len(shared)

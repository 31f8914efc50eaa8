"""Recorded trajectories: rendering, filters, messages; and the real files."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from rapo_rllib.traces.formats import detect
from rapo_rllib.traces.recorded import read_trace_file, rendered_steps
from rapo_rllib.types import ExpertTrajectory, Question

SEGMENTS = [
    {"type": "think", "text": "3 + 5 = "},
    {"type": "call", "tool": "python", "text": "print(3 + 5)"},
    {"type": "result", "text": "8"},
    {"type": "think", "text": " \n"},
    {"type": "answer", "text": " 8\n"},
]
ROW = {"id": "r1", "source": "s", "question": "What is 3 + 5?", "gold": "8", "correct": True, "segments": SEGMENTS}


def write(path: Path, rows: list) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_row_becomes_steps_of_the_text_protocol(tmp_path, name):
    found = list(
        read_trace_file(write(tmp_path / name, [ROW, "", ROW | {"id": "r2", "reward": 0.5, "gold": ["8", ["eight"]]}]))
    )
    steps = ("<think>3 + 5 = </think><python>print(3 + 5)</python>\n<result>\n8\n</result>\n", "<answer>\\boxed{8}</answer>")
    assert found == [
        ExpertTrajectory(Question("r1", "What is 3 + 5?", "8", source="s"), steps, 1.0, "s"),
        ExpertTrajectory(Question("r2", "What is 3 + 5?", "8", ("eight",), source="s"), steps, 0.5, "s"),
    ]


def test_steps_that_are_in_the_protocol_already_stay_as_they_are(tmp_path):
    steps = ("<think>a</think> and <python>1</python>\n<result>\n1\n</result>\n", "So it is <answer>8</answer>.")
    row = {key: value for key, value in ROW.items() if key != "segments"} | {"steps": list(steps)}
    (found,) = read_trace_file(write(tmp_path / "t.jsonl", [row]))
    assert found.steps == steps
    assert detect(tmp_path / "t.jsonl") == "traces"


def test_a_job_says_what_of_its_file_is_left_out(tmp_path, caplog):
    path = write(tmp_path / "t.jsonl", [ROW, ROW | {"correct": 0}, ROW | {"segments": SEGMENTS[:2]}])
    assert len(list(read_trace_file(path))) == 1
    assert "t.jsonl: left out: 1 (correct is false), 1 (a call without a result), 1 (no step)" in caplog.text
    caplog.clear()
    assert len(list(read_trace_file(write(path, [ROW])))) == 1
    assert caplog.text == ""


def test_a_call_without_result_is_no_step():
    calls = [{"type": "think", "text": "and"}, {"type": "call", "tool": "python", "text": "1"}]
    assert len(rendered_steps([*SEGMENTS[:3], *calls])) == 1
    assert rendered_steps(calls) == ()
    assert rendered_steps([*SEGMENTS[:3], {"type": "think", "text": "so 8"}])[1] == "<think>so 8</think>"


@pytest.mark.parametrize("left_out", [{"correct": False}, {"calc_ok": False}, {"in_arpo_eval": "hotpotqa"}, {"segments": []}])
def test_rows_that_teach_nothing_right_are_left_out(tmp_path, left_out):
    path = write(tmp_path / "t.jsonl", [ROW | left_out, ROW | {"id": "kept", "correct": None, "calc_ok": True}])
    assert [e.question.id for e in read_trace_file(path)] == ["kept"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", r"t\.jsonl, line 2: no JSON"),
        ("[1]", r"line 2: expected a JSON object, got list"),
        ({"question": "  "}, r"line 2: field 'question' is empty"),
        ({"question": None}, r"line 2: field 'question' must be a text, got None"),
        ({"id": 7}, r"line 2: field 'id' must be a text, got 7"),
        ({"gold": None}, r"line 2: field 'gold' must be a text or a list"),
        ({"gold": []}, r"line 2: field 'gold' is empty"),
        ({"reward": "high"}, r"line 2: field 'reward' must be a finite number, got 'high'"),
        ({"reward": float("nan")}, r"line 2: field 'reward' must be a finite number, got 'nan'"),
        ({"reward": 10**400}, r"line 2: field 'reward' must be a finite number, got '10"),
        ({"question": "a\ud800"}, r"line 2: field 'question' holds half a character \('\\ud800', at 1\)"),
        ({"segments": [{"type": "answer", "text": "\udfff"}]}, r"line 2: field 'steps' holds half a character"),
        ({"source": "é" * 513}, r"line 2: field 'source' has 1,026 bytes and must have at most 1,024; shorten it"),
        ({"id": "x" * 1025}, r"line 2: field 'id' has 1,025 bytes and must have at most 1,024"),
        ({"steps": "a"}, r"line 2: field 'steps' must be a list of texts, none of them empty, got a"),
        ({"steps": ["a", ""]}, r"line 2: field 'steps' must be a list of texts"),
        ({"segments": None}, r"line 2: field 'segments' must be a list, got NoneType"),
        ({"segments": [{"type": "thought", "text": ""}]}, r"line 2: field 'segments\[0\]\.type' must be one of"),
        ({"segments": [SEGMENTS[0], {"type": "think"}]}, r"line 2: field 'segments\[1\]\.text' must be a text, got None"),
        (
            {"segments": [{"type": "call", "text": "", "tool": "a b"}]},
            r"line 2: field 'segments\[0\]\.tool' must be a tool's name",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, message):
    bad = row if isinstance(row, str) else ROW | row
    with pytest.raises(ValueError, match=message):
        list(read_trace_file(write(tmp_path / "t.jsonl", [ROW, bad])))


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no trace file .*gone\.jsonl"):
        list(read_trace_file(tmp_path / "gone.jsonl"))
    with pytest.raises(ValueError, match=r"cannot be read after line 0"):
        list(read_trace_file(tmp_path))
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text(json.dumps(ROW))
    with pytest.raises(ValueError, match=r"plain\.jsonl\.gz cannot be read after line 0: Not a gzipped file"):
        list(read_trace_file(plain))
    whole = gzip.compress((json.dumps(ROW) + "\n").encode() * 1000)
    plain.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read after line"):
        list(read_trace_file(plain))


# 7,473 rows less 276 with calc_ok false; 794 + 9 correct rows of which 9 are in an evaluation set (README of the data).
@pytest.mark.parametrize(("name", "rows"), [("gsm8k_train_human_calc", 7197), ("fireact_hotpotqa_react", 794)])
def test_real_files(shared_data, name, rows):
    found = list(read_trace_file(shared_data / "traces" / f"{name}.jsonl.gz"))
    assert len(found) == rows
    for expert in found:
        assert all(step.endswith("\n</result>\n") for step in expert.steps[:-1])
    assert sum(expert.steps[-1].endswith("}</answer>") for expert in found) > 0.99 * rows


def test_parallel_calls_of_real_traces_have_their_own_results(shared_data):
    dropped = Counter()
    found = list(read_trace_file(shared_data / "traces" / "verifiers_wiki_search.jsonl.gz", dropped))
    calls = [step for expert in found for step in expert.steps if step.endswith("</result>\n")]
    one_call = re.compile(r"(<think>((?!</think>).)*</think>)*<(\w+)>((?!</?\3>).)*</\3>\n<result>\n", re.DOTALL)
    assert len(calls) == 2207 and all(one_call.match(step) for step in calls)
    assert dropped == {"correct is false": 190}

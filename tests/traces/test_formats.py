"""Reading each format, recognising it, and what is said where it is wrong."""

import gzip
import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from rapo_rllib.traces.exported import header_row
from rapo_rllib.traces.formats import detect, read
from rapo_rllib.traces.released import split_key
from rapo_rllib.types import StepTrace

TRACE = {"id": "1", "question": "3 + 5?", "gold": "8", "segments": [{"type": "answer", "text": "8"}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "python", "arguments": '{"code": "print(3 + 5)"}'}}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "3 + 5?"}]},
        {"role": "assistant", "content": "Add.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "8"},
        {"role": "assistant", "content": "8"},
    ]
}
ADDS = {"tool_calls": [{"function": {"name": "add", "arguments": {"a": 3, "b": 5}}}]}
STEP = "<think>Add.</think><python>print(3 + 5)</python>\n<result>\n8\n</result>\n"
KEY = "system\nUse tools.\nuser\n3 + 5?\nassistant\n"
STORED = StepTrace("given", "3 + 5?", STEP, "<answer>\\boxed{8}</answer>", 0.25, "q1", 1, "gpt\n\u2028é", 3)


def write(path: Path, *rows: dict | str) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def all_of(path: Path, format: str = "auto") -> tuple[list, Counter[str]]:
    dropped: Counter[str] = Counter()
    return list(read(path, format, dropped)), dropped


@pytest.mark.parametrize(
    ("row", "format"),
    [
        (TRACE, "traces"),
        ({"key": KEY, "value": STEP, "reward": 1}, "released"),
        (CHAT, "chat"),
        (asdict(STORED), "traces-steps"),
        (header_row(0), "traces-steps"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_the_first_line_tells_the_format(tmp_path, row, format, name) -> None:
    assert detect(write(tmp_path / name, row)) == format


def test_a_chat_becomes_the_text_protocol(tmp_path) -> None:
    ((expert,), dropped) = all_of(write(tmp_path / "a.jsonl", {**CHAT, "id": "x", "model": "gpt-4", "reward": 0.5}))
    assert expert.steps == (STEP, "<answer>\\boxed{8}</answer>")
    assert (expert.question.text, expert.question.id, expert.reward, expert.source) == ("3 + 5?", "x", 0.5, "gpt-4")
    assert not dropped


@pytest.mark.parametrize(
    ("messages", "steps"),
    [
        ([("assistant", "The sum is \\boxed{8}.")], ("<answer>The sum is \\boxed{8}.</answer>",)),
        ([("assistant", "<think>a</think><answer>8</answer>")], ("<think>a</think><answer>8</answer>",)),
        (  # results without ids come in the order of the calls
            [("assistant", "", ADDS), ("tool", "8")],
            ('<add>{"a": 3, "b": 5}</add>\n<result>\n8\n</result>\n',),
        ),
        (
            [("assistant", "I add."), ("assistant", "", ADDS), ("tool", "8"), ("assistant", "8")],
            ('<think>I add.</think><add>{"a": 3, "b": 5}</add>\n<result>\n8\n</result>\n', "<answer>\\boxed{8}</answer>"),
        ),
        ([("assistant", "8", {"reasoning_content": "Add."})], ("<think>Add.</think><answer>\\boxed{8}</answer>",)),
    ],
)
def test_what_assistants_say(tmp_path, messages, steps) -> None:
    said = [{"role": role, "content": content, **(more[0] if more else {})} for role, content, *more in messages]
    row = {"messages": [{"role": "user", "content": "3 + 5?"}, *said]}
    found, dropped = all_of(write(tmp_path / "a.jsonl", row))
    assert ([expert.steps for expert in found], dropped) == ([steps], {})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEY, ("3 + 5?", "")),
        (KEY + STEP, ("3 + 5?", STEP)),
        (
            "<|im_start|>system\nx<|im_end|>\n<|im_start|>user\n3 + 5?<|im_end|>\n<|im_start|>assistant\n" + STEP,
            ("3 + 5?", STEP),
        ),
        ("3 + 5?", ("3 + 5?", "")),
        ("3 + 5?\n" + STEP, ("3 + 5?", STEP)),
    ],
)
def test_the_released_keys(key, expected) -> None:
    assert split_key(key) == expected


def test_the_released_lines(tmp_path) -> None:
    rows = [
        {"key": KEY, "value": STEP, "reward": 0.4},
        {"key": KEY + STEP, "value": "<answer>8</answer>", "reward": -1, "source": "aepo", "question_id": "q"},
        {"key": "null", "value": "null", "reward": 0.4},
        {"key": KEY, "value": " ", "reward": 0.4},
    ]
    (first, second), dropped = all_of(write(tmp_path / "a.jsonl", *rows))
    assert first == StepTrace("", "3 + 5?", "", STEP, 0.4, source="released")
    assert second == StepTrace("", "3 + 5?", STEP, "<answer>8</answer>", -1.0, "q", 1, "aepo")
    assert dropped == {"padding of the released code ('null')": 1, "empty value": 1}


def test_what_was_exported_is_read_as_it_was(tmp_path) -> None:
    path = write(tmp_path / "a.jsonl.gz", header_row(1), asdict(STORED))
    assert all_of(path) == ([STORED], {})
    cut = write(tmp_path / "b.jsonl", header_row(2), asdict(STORED))
    with pytest.raises(ValueError, match=r"b\.jsonl: the file ends after 1 of 2 step traces; export it again"):
        all_of(cut)


ANSWERED = {
    "question": "A hall.",
    "steps": [{"text": "go", "observation": "You win."}],
    "kinds": [0],
    "given": [],
    "end": "answer",
}


@pytest.mark.parametrize("value", [False, 0, 0.0])
@pytest.mark.parametrize(("row", "field"), [(TRACE, "correct"), (TRACE, "calc_ok"), (CHAT, "correct"), (ANSWERED, "correct")])
def test_what_says_no_is_left_out(tmp_path, row, field, value) -> None:
    found, dropped = all_of(write(tmp_path / "a.jsonl", row | {field: value}))
    if row is CHAT:
        assert [expert.reward for expert in found] == [0.0]
    else:
        assert (found, dropped.total()) == ([], 1) and next(iter(dropped)).startswith(f"{field} is false")


@pytest.mark.parametrize("row", [TRACE, CHAT, ANSWERED])
def test_what_says_yes_or_nothing_is_taken(tmp_path, row) -> None:
    values = [True, 1, 1.0, None]
    found, dropped = all_of(write(tmp_path / "a.jsonl", *(row | {"correct": value} for value in values)))
    assert ([one.reward for one in found], dropped) == ([1.0] * len(values), {})


@pytest.mark.parametrize("value", [float("nan"), 0.5, "", "False", [], [False], {}])
@pytest.mark.parametrize(("row", "field"), [(TRACE, "correct"), (TRACE, "calc_ok"), (CHAT, "correct"), (ANSWERED, "correct")])
def test_what_says_neither_is_named(tmp_path, row, field, value) -> None:
    with pytest.raises(ValueError, match=rf"line 2: field '{field}' must be true or false, got {re.escape(repr(value))}; "):
        all_of(write(tmp_path / "a.jsonl", row, row | {field: value}))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"a\.jsonl is empty"),
        (["{"], r"a\.jsonl, line 1: no JSON"),
        (
            [{"text": "a"}],
            r"a\.jsonl, line 1: fields \['text'\] belong to no known format \(transcripts: kinds and steps; traces: segments;",
        ),
        (
            [{"question": "q", "steps": ["x"], "id": "1"}, {"question": "q", "id": "2"}],
            r"line 2: field 'segments'.* or 'steps' a list",
        ),
        ([TRACE, {**TRACE, "question": 3}], r"a\.jsonl, line 2: field 'question' must be a text"),
        ([{"key": KEY, "value": STEP, "reward": "high"}], r"line 1: field 'reward' must be a finite number, got 'high'"),
        ([{"key": STEP, "value": STEP}], r"line 1: field 'key' holds no question"),
        ([{"messages": "hi"}], r"line 1: field 'messages' must be a list, got str"),
        ([{"messages": [{"role": "bot"}]}], r"line 1: field 'messages\[0\]\.role' must be one of"),
        ([{"messages": [{"role": "user", "content": 3}]}], r"line 1: field 'messages\[0\]\.content' must be a text or a list"),
        (
            [{"messages": [*CHAT["messages"][:2], {"role": "assistant", "tool_calls": [{"function": {"name": "a b"}}]}]}],
            r"line 1: field 'tool_calls\[\]\.function\.name' must be a tool's name",
        ),
        ([{**asdict(STORED), "step_index": "1"}], r"line 1: field 'step_index' must be a whole number of 64 bits, got"),
        ([{**asdict(STORED), "step_index": 2**63}], r"line 1: field 'step_index' must be a whole number of 64 bits"),
        ([{**asdict(STORED), "id": "x" * 257}], r"line 1: field 'id' has 257 bytes and must have at most 256"),
        ([{"key": KEY, "value": "\ud800"}], r"line 1: field 'text' holds half a character"),
        ([{**CHAT, "id": "x" * 1025}], r"line 1: field 'id' has 1,025 bytes and must have at most 1,024"),
        ([{"step_trace_buffer": 2}], r"line 1: field 'step_trace_buffer' is 2; this version of the package reads 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, rows, message) -> None:
    with pytest.raises(ValueError, match=message):
        all_of(write(tmp_path / "a.jsonl", *rows))


@pytest.mark.parametrize("row", [TRACE, CHAT, ANSWERED, {"key": KEY, "value": STEP}, asdict(STORED)])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path, row, name) -> None:
    plain = write(tmp_path / "b.jsonl", row, row)
    text = "".join(f"\ufeff{line}" for line in plain.read_text(encoding="utf-8").splitlines(keepends=True))
    assert all_of(write(tmp_path / name, "\ufeff", text.removesuffix("\n"))) == all_of(plain)


def test_a_format_that_nobody_knows(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"format must be one of \('auto', 'traces', .*, got 'parquet'"):
        all_of(write(tmp_path / "a.jsonl", TRACE), "parquet")


def test_chats_that_are_no_trajectories_are_counted(tmp_path) -> None:
    ask, answer = {"role": "user", "content": "3 + 5?"}, {"role": "assistant", "content": "8"}
    rows = [[answer], [ask], [{"role": "system", "content": "x"}]]
    found, dropped = all_of(write(tmp_path / "a.jsonl", *({"messages": row} for row in rows)))
    assert found == []
    assert dropped == {"no question": 2, "no answer of the assistant": 1}


def test_in_a_dialogue_the_user_is_the_environment(tmp_path) -> None:
    said = [("user", "You are in the hall."), ("assistant", "go north"), ("user", "A locked door."), ("assistant", "open it")]
    ((expert,), _) = all_of(write(tmp_path / "a.jsonl", {"messages": [{"role": r, "content": c} for r, c in said]}))
    assert expert.question.text == "You are in the hall."
    assert expert.steps == ("go north\n<result>\nA locked door.\n</result>\n", "open it")


@pytest.mark.parametrize("more", [{}, {"gold": None, "segments": None}])
def test_steps_of_a_game_need_no_answer(tmp_path, more) -> None:
    row = {"id": "1", "question": "You are in the hall.", "steps": ["go north\n<result>\nYou win.\n</result>\n"]}
    ((expert,), _) = all_of(write(tmp_path / "a.jsonl", row | more))
    assert (expert.question.answer, expert.steps) == ("", tuple(row["steps"]))


def test_transcripts_of_a_run_are_step_traces(tmp_path) -> None:
    step = {"text": "go north", "record": None, "tool_error": None, "observation": ""}
    steps = [
        {**step, "text": "x", "record": "<act>go</act>"},
        {**step, "tool_error": "timeout"},
        {**step, "observation": "You win."},
    ]
    row = {
        "question": "A hall.",
        "question_id": "seed-1",
        "steps": steps,
        "kinds": [0],
        "given": [],
        "gold": "",
        "reward": 0.5,
        "end": "answer",
    }
    found, dropped = all_of(write(tmp_path / "a.jsonl", row, {**row, "end": "length"}, {**row, "correct": False}))
    empty = "\n<result>\n\n</result>\n"
    assert [trace.text for trace in found] == [f"<act>go</act>{empty}", "go north\n<result>\nYou win.\n</result>\n"]
    assert [trace.history for trace in found] == ["", f"<act>go</act>{empty}go north{empty}"]
    assert {(t.question, t.reward, t.source, t.question_id) for t in found} == {("A hall.", 0.5, "transcripts", "seed-1")}
    assert sum(dropped.values()) == 3

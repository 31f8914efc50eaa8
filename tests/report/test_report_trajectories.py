"""Transcripts as the reader shows them, and which of them fit into a page."""

import json

import pytest
from run_folders import TRACE, add_step, add_trace, outcome, sampled, write_trial

from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.monitoring.transcripts import transcript, write_transcripts
from rapo_rllib.report.runs import JsonLines, read_trial
from rapo_rllib.report.trajectories import grouped, script_json, selected, shown_group, text_parts
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, Trajectory

QUESTION = Question("q", "How many?", "8")


def hybrid() -> Trajectory:
    trajectory = Trajectory("q", [1], hybrid=True)
    add_step(trajectory, "<python>print(8)</python>", [1.0, 2.0], "python", "8")
    add_trace(trajectory)
    add_step(trajectory, "<answer>\\boxed{8}</answer>", [0.5])
    return outcome(trajectory, correct=True)


def test_parts_say_who_wrote_what() -> None:
    row = transcript(QUESTION, hybrid())
    parts = text_parts(row)
    assert [part["by"] for part in parts] == ["policy", "tool", "retrieved", "policy"]
    assert "".join(part["text"] for part in parts) == row["text"]
    assert parts[1]["text"] == "\n<result>\n8\n</result>\n"
    assert parts[2]["text"].startswith("Additional context") and TRACE.text in parts[2]["text"]
    assert parts[2]["source"] == "word_problems/solver" and parts[2]["similarity"] == 0.83
    assert parts[0]["entropy"] == 1.5 and parts[0]["entropies"] == [1.0, 2.0] and parts[3]["entropies"] == [0.5]
    assert parts[0]["tool"] == "python" and parts[0]["tool_seconds"] == 0.02


def test_what_the_last_token_wrote_behind_the_answer_is_the_policys() -> None:
    trajectory = hybrid()
    trajectory.text += " So"  # its last token, sampled to see whether it ends its turn
    parts = text_parts(transcript(QUESTION, trajectory))
    assert [part["by"] for part in parts] == ["policy", "tool", "retrieved", "policy"]
    assert parts[3]["text"] == "<answer>\\boxed{8}</answer> So"


def test_a_trace_ahead_of_all_steps_is_retrieved_text() -> None:
    trajectory = Trajectory("q", [1], hybrid=True)
    add_trace(trajectory)
    add_step(trajectory, "<answer>1</answer>", [0.5])
    assert [part["by"] for part in text_parts(transcript(QUESTION, trajectory))] == ["retrieved", "policy"]


def test_the_steps_that_it_begins_behind_are_a_part_of_their_own() -> None:
    trajectory = Trajectory("q", [1], given=("<python>3</python>\n<result>\n3\n</result>\n",))
    trajectory.append_given([5, 6])
    trajectory.text = trajectory.given[0]
    add_step(trajectory, "<answer>1</answer>", [0.5])
    parts = text_parts(transcript(QUESTION, trajectory))
    assert [(part["by"], part["text"]) for part in parts] == [("given", trajectory.given[0]), ("policy", "<answer>1</answer>")]


def test_a_row_of_nothing_is_shown() -> None:
    (member,) = shown_group([{}], 1)["members"]
    assert member["parts"] == [] and member["reward"] is None and member["end"] == ""


def test_many_entropies_become_a_short_strip() -> None:
    trajectory = Trajectory("q", [1])
    add_step(trajectory, "x", [0.0, 2.0] * 600)
    (part,) = text_parts(transcript(QUESTION, trajectory))
    assert part["tokens"] == 1200 and part["entropies"] == [1.0] * 120


def test_advantages_are_those_of_the_training(tmp_path) -> None:
    objective = ObjectiveSettings(retrieval_advantage_weight=1.0, overlong_buffer_share=0.5, max_response_tokens=60)
    groups = [group for group in sampled(1, questions=12).groups if len(set(group.rewards)) > 1]
    groups[0].trajectories[0].end = "error"
    trained, _ = sample_groups(groups, objective)
    assert len(trained) > 3
    write_transcripts(str(tmp_path), "iteration_00001.jsonl", groups, objective=objective)
    shown = [shown_group(rows, 1)["members"] for rows in grouped(JsonLines(tmp_path / "iteration_00001.jsonl"))]
    assert shown[0][0]["advantage"] is None
    for members, samples in zip([shown[0][1:], *shown[1:]], trained, strict=True):
        expected = [float(sample.advantages[0]) for sample in samples.samples]
        assert [member["advantage"] for member in members] == pytest.approx(expected, abs=1e-4)


def test_groups_are_told_apart_by_number() -> None:
    rows = [{"group": 0, "question_id": "a"}, {"group": 0, "question_id": "a"}, {"group": 1, "question_id": "a"}]
    assert [len(group) for group in grouped(rows)] == [2, 1]


def test_the_page_holds_the_newest_that_fit(tmp_path) -> None:
    trial = read_trial(write_trial(tmp_path, iterations=8))
    everything = selected(trial, 10**9)
    numbers = [json.loads(group)["iteration"] for group in everything.groups]
    assert numbers == sorted([*range(1, 9)] * 3) and not everything.left_out
    total = sum(map(len, everything.groups))
    half = selected(trial, total // 2)
    assert half.left_out and half.groups[-3:] == everything.groups[-3:]
    assert total // 4 < sum(map(len, half.groups)) <= total // 2
    few = selected(trial, int(len(everything.groups[-3]) * 1.7))
    assert few.left_out and few.groups == everything.groups[-3:-2]
    assert selected(trial, 10).groups == []


def test_script_json_ends_no_script() -> None:
    text = script_json({"a": "</script><!-- <b>"})
    assert "<" not in text and json.loads(text) == {"a": "</script><!-- <b>"}
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))

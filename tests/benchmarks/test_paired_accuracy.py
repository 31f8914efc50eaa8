"""The counting of ``benchmarks/paired_accuracy.py``, by hand and from the folder of a trial."""

import json
from pathlib import Path

import pytest
from paired_accuracy import compared, measured


def test_a_hand_worked_comparison() -> None:
    before = dict.fromkeys("abcdefgh", False) | {"a": True, "b": True}
    after = dict.fromkeys("abcdefgh", True) | {"a": False, "h": False}
    found = compared(before, after)
    assert (found["questions"], found["accuracy_before"], found["accuracy_after"]) == (8, 0.25, 0.75)
    assert (found["gained"], found["lost"], found["difference"]) == (5, 1, 0.5)
    assert found["p"] == pytest.approx(2 * (1 + 6) / 2**6)  # of six that changed, at most one on the rarer side
    low, high = found["interval"]
    assert -0.25 < low < 0.5 < high < 1.0


def test_nothing_changed() -> None:
    assert compared({"a": True}, {"a": True})["p"] == 1.0


def test_other_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="of different questions"):
        compared({"a": True}, {"b": True})


def write(trial: Path, version: int, *rows: tuple[str, bool]) -> None:
    (trial / "held_out").mkdir(exist_ok=True)
    lines = [json.dumps({"question_id": question, "correct": correct}) for question, correct in rows]
    (trial / "held_out" / f"version_{version:05d}.jsonl").write_text("\n".join(lines))


def test_a_trial_is_compared_from_its_first_to_its_last_evaluation(tmp_path: Path) -> None:
    result = {"rapo": {"seconds": 9.0}, "time_this_iter_s": 4.0, "env_runners": {"accuracy": 0.5}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    write(tmp_path, 0, ("a", False), ("b", True))
    with pytest.raises(SystemExit, match="1 evaluations; two are compared"):
        measured(tmp_path)
    write(tmp_path, 6, ("a", False), ("b", False))
    write(tmp_path, 12, ("a", True), ("b", True))
    found = measured(tmp_path)
    assert found["comparison"]["gained"] == 1 and found["comparison"]["lost"] == 0
    assert found["evaluations"] == {"version_00000": 0.5, "version_00006": 0.0, "version_00012": 1.0}
    write(tmp_path, 12, ("a", True), ("a", True))
    with pytest.raises(ValueError, match="2 attempts at 1 questions"):
        measured(tmp_path)

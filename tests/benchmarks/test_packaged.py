"""The book-keeping of ``benchmarks/packaged.py``, and the raw results that it has left."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import packaged
import pytest
from learning_parts import packaged_pairs
from learning_parts.equal_tables import equal_tables
from learning_parts.every_figure import all_figures
from places import REPOSITORY

from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.monitoring.warning_rules import ALARMS
from rapo_rllib.monitoring.warnings import warnings_of

JOB = REPOSITORY / "tuned_examples" / "rapo_math.yaml"


def iteration(number: int, held_out: float | None = None) -> dict[str, Any]:
    evaluation = {} if held_out is None else {"evaluation": {"env_runners": {"accuracy": held_out}}}
    sampled = {
        "accuracy": 0.5,
        "retrieval": {"count": 3.0, "shows_answer": 1 / 3},
        "ends": {"answer": 8.0, "tool_limit": math.nan},
    }
    totals = {"accuracy_before": 0.125, "evaluated_questions": 128}
    return {"training_iteration": number, "time_this_iter_s": 10.04, "env_runners": sampled, "rapo": totals, **evaluation}


def test_figures_are_the_curve_and_what_each_iteration_sampled() -> None:
    found = packaged.figures([iteration(1), iteration(2, 0.25)])
    assert found["held_out"] == [[0, 0.125], [2, 0.25]] and found["seconds"] == 20.0
    assert found["iterations"][1] == {
        "iteration": 2,
        "seconds": 10.0,
        "accuracy": 0.5,
        "retrieval/count": 3.0,
        "retrieval/shows_answer": 0.333333,
    }


def test_seeds_and_the_report() -> None:
    assert packaged.seeds_of("0-3") == [0, 1, 2, 3] and packaged.seeds_of("1,5") == [1, 5]
    results = [{"seed": seed, "seconds": 9.6, "held_out": [[0, 0.023], [20, end]]} for seed, end in enumerate([0.36, 0.35])]
    lines = packaged.report(results, above=0.35).splitlines()
    assert lines == ["seed 0: 2.3, 36.0 % in 10 s", "seed 1: 2.3, 35.0 % in 10 s", "1 of 2 seeds end above 35%"]


def test_a_raw_result_is_of_its_settings_and_of_no_others(tmp_path: Path) -> None:
    text = JOB.read_text(encoding="utf-8")
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text(text.replace("seed: 0", "seed: 7") + "# a comment\n")
    other.write_text(text.replace("num_minibatches: 2", "num_minibatches: 1"))
    hashes = [packaged.settings_hash(file, []) for file in (JOB, same, other)]
    assert hashes[0] == hashes[1] != hashes[2] and packaged.settings_hash(JOB, ["num_hybrid=2"]) not in hashes
    file = tmp_path / "result.json"
    assert not packaged.is_done(file, hashes[0])
    file.write_text(json.dumps({"settings": hashes[0]}))
    assert packaged.is_done(file, hashes[0])
    with pytest.raises(ValueError, match="is of the settings"):
        packaged.is_done(file, hashes[2])


def test_a_seed_that_is_there_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    done = {"settings": packaged.settings_hash(JOB, ["time_budget_s=null"]), "seed": 3, "held_out": [[20, 0.5]], "seconds": 1.0}
    (tmp_path / "packaged-rapo_math-seed-3.json").write_text(json.dumps(done))
    monkeypatch.setattr(
        "sys.argv", ["packaged.py", "--seeds", "3", "--json-dir", str(tmp_path), "--folder", str(tmp_path / "runs")]
    )
    packaged.main()
    assert "1 of 1 seeds end above 35%" in capsys.readouterr().out and not (tmp_path / "runs").exists()


RAW = sorted(packaged.RESULTS.glob("packaged-*-seed-*.json"))


@pytest.mark.parametrize("file", RAW, ids=lambda file: file.stem)
def test_the_alarms_are_quiet_on_every_seed_that_did_not_collapse(file: Path) -> None:
    measured = json.loads(file.read_text(encoding="utf-8"))
    curve, summary = dict(measured["held_out"]), RunSummary()
    summary.take_evaluation({"accuracy": curve[0], "num_episodes": measured["evaluated_questions"]})
    results = []
    for sampled in measured["iterations"]:
        if (number := sampled["iteration"]) in curve:
            summary.take_evaluation({"accuracy": curve[number], "num_episodes": measured["evaluated_questions"]})
        results.append({"training_iteration": number, "env_runners": sampled, "rapo": summary.as_dict(60.0)})
    assert not {warning.name for warning in warnings_of(results, {"num_hybrid": 4})} & set(ALARMS)


def test_pairs_are_those_seeds_that_both_jobs_have(tmp_path: Path) -> None:
    def write(job: str, seed: int, end: float, seconds: float) -> None:
        raw = {"seed": seed, "held_out": [[0, 0.0], [20, end]], "seconds": seconds}
        (tmp_path / f"packaged-{job}-seed-{seed}.json").write_text(json.dumps(raw))

    assert packaged_pairs.packaged(tmp_path) == {}
    for seed, end in enumerate([0.5, 0.6, 0.4]):
        write("rapo_math", seed, end, 100.0)
    found = packaged_pairs.packaged(tmp_path)
    curves = {"rapo_math": {"0": [0.0, 0.5], "1": [0.0, 0.6], "2": [0.0, 0.4]}, "grpo_math": {}}
    assert found == {"lowest": 0.4, "n": 3, "mean": 0.5, "curves": curves}
    for seed, end in ((1, 0.5), (2, 0.4), (7, 0.9)):
        write("grpo_math", seed, end, 100.0 + 100.0 * (seed == 2))
    found = packaged_pairs.packaged(tmp_path)
    assert found["rapo_minus_grpo"]["mean"] == pytest.approx(0.05) and found["rapo_minus_grpo"]["n"] == 2
    assert found["seconds_ratio"]["mean"] == 0.75 and found["seconds_ratio"]["n"] == 2


def test_what_decides_stands_where_documents_look_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, *ends: float) -> None:
        raw = {seed: {"rows": [{"tokens": t, "accuracy": a, "train_s": t} for t in (0, 100)]} for seed, a in enumerate(ends)}
        (tmp_path / f"{name}.json").write_text(json.dumps(raw))

    for folder in ("policies", "pairs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "policies" / "habits.json").write_text("{}")
    write("equal-3-sft_steps", 0.9, 0.8, 0.7)
    write("equal-3-luffy", 0.8, 0.6)
    write("equal-4-sft_steps_other", 0.9, 0.8)
    write("equal-4-sft_grpo_other", 0.8, 0.9)
    for job, ends in (("rapo_math", (0.5, 0.6)), ("grpo_math", (0.1, 0.3))):
        for seed, end in enumerate(ends, 10):
            raw = {"seed": seed, "held_out": [[0, 0.0], [20, end]], "seconds": 100.0 * end}
            (tmp_path / "pairs" / f"packaged-{job}-seed-{seed}.json").write_text(json.dumps(raw))
    found = all_figures(tmp_path)
    assert found["pairs"] == {"so_far": 2} and not found["words"]
    monkeypatch.setattr(packaged_pairs, "PLANNED", (10, 11))
    found = all_figures(tmp_path)
    assert found["words"]["best_minus_grpo"] == found["pairs"]["rapo_minus_grpo"]
    assert found["chains"]["3"]["best_minus_luffy"]["mean"] == pytest.approx(0.15)
    assert found["other"].keys() == {"4"} and found["other"]["4"]["best_minus_sft_grpo"]["mean"] == pytest.approx(0.0)
    assert found["pairs"]["rapo_minus_grpo"]["mean"] == pytest.approx(0.35) and found["pairs"]["rapo_minus_grpo"]["n"] == 2
    made = equal_tables(found["equal"], found["pairs"])
    assert "| fine-tuning, then that | 80 (55 to 105) |  | 80 | 3 of 3, 0 | 100 |" in made["equal-3"]
    assert "| fine-tuning and single steps, minus LUFFY | 3 | +15.0 (-48.5 to 78.5; 2 of 2) |" in made["equal-deciding"]
    assert made["equal-deciding"].count("too few pairs") == 2
    assert "2; 50.0, 55.0" in made["pairs"] and "+35.0 (" in made["pairs"]


def test_runs_of_one_job_never_meet_and_one_that_fails_is_the_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second job of a pair takes longer than the first of the next pair would wait; then a run fails."""
    begun: list[tuple[str, int]] = []
    running: set[str] = set()

    def run(job: Path, seed: int, settings: Any, folder: Path, core: int | None = None) -> dict[str, Any]:
        assert job.stem not in running, "two runs of one job"
        running.add(job.stem)
        begun.append((job.stem, seed))
        time.sleep(0.3 if job.stem == "rapo_math" else 0.01)
        running.remove(job.stem)
        if (job.stem, seed) == ("grpo_math", 12):
            raise RuntimeError("failed")
        return {"settings": packaged.settings_hash(job, settings)}

    monkeypatch.setattr(packaged, "run", run)
    with pytest.raises(RuntimeError, match="failed"):
        packaged.run_pairs(range(10, 20), ["time_budget_s=null"], tmp_path / "runs", tmp_path / "pairs")
    assert max(seed for _, seed in begun) <= 13


def test_pairs_run_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two runs at a time, on a core each and one after the other there; what has its raw result is not run again."""
    together, started = threading.Barrier(2, timeout=60), []

    def run(job: Path, seed: int, settings: Any, folder: Path, core: int | None = None) -> dict[str, Any]:
        together.wait()
        started.append((seed, job.stem, folder.name, core))
        together.wait()
        return {"settings": packaged.settings_hash(job, settings)}

    monkeypatch.setattr(packaged, "run", run)
    for _ in range(2):
        packaged.run_pairs([10, 11], ["time_budget_s=null"], tmp_path / "runs", tmp_path / "pairs")
    assert [seed for seed, *_ in started] == [10, 10, 11, 11] and len(list((tmp_path / "pairs").iterdir())) == 4
    for seed in (10, 11):
        of_seed = [run for run in started if run[0] == seed]
        assert {run[1:3] for run in of_seed} == {("rapo_math", "rapo_math"), ("grpo_math", "grpo_math")}
        assert {run[3] for run in of_seed} == {0, 1}

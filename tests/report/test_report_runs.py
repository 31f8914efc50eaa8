"""Reading what trials leave behind, at any moment of their life."""

import json
import math
import os

import pytest
from run_folders import write_trial

from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.report.comparison import compared, differing_keys
from rapo_rllib.report.curves import HELD_OUT, REWARD, panels, plot_values, trial_curves
from rapo_rllib.report.runs import JsonLines, Trial, find_trials, read_trial


@pytest.mark.parametrize(
    ("content", "objects", "unreadable"),
    [
        (b"", [], 0),
        (b'{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}], 0),
        (b'{"a": 1}\n{"a": 2, "b', [{"a": 1}], 0),  # still being written
        (b'{"a": 1}\n{"a": 2}', [{"a": 1}, {"a": 2}], 0),  # whole, but for its line break
        (b'{"a": 1}\n{"a": \n\n[3]\n{"a": 4}\n', [{"a": 1}, {"a": 4}], 2),
        (b'{"a": "\xff"}\n', [{"a": "\ufffd"}], 0),
        (b'\xef\xbb\xbf{"a": 1}\n', [{"a": 1}], 0),  # with a byte order mark
        ('{"a": "ä'.encode()[:-1], [], 0),  # cut within a character
        (b"[" * 100_000 + b"\n", [], 1),
    ],
)
def test_lines_of_a_file_that_is_being_written(tmp_path, content, objects, unreadable) -> None:
    (tmp_path / "lines").write_bytes(content)
    lines = JsonLines(tmp_path / "lines")
    assert list(lines) == objects
    assert lines.unreadable == unreadable


def test_a_missing_file_has_no_lines(tmp_path) -> None:
    assert list(JsonLines(tmp_path / "none")) == []


def test_a_trial_of_its_files(tmp_path) -> None:
    trial = read_trial(write_trial(tmp_path / "trial", iterations=4))
    assert [row["training_iteration"] for row in trial.rows] == [1, 2, 3, 4]
    assert trial.state == "ended" and trial.params["retrieval_prob"] == 0.5
    assert trial.config["retrieval_advantage_weight"] == 0.2 and "config" not in trial.rows[0]
    assert list(trial.iterations) == [1, 2, 3, 4]


def test_a_restored_run_goes_on_from_its_checkpoint(tmp_path) -> None:
    rows = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25)]
    lines = [json.dumps({"training_iteration": number, "env_runners": {"accuracy": value}}) for number, value in rows]
    (tmp_path / "result.json").write_text("\n".join(lines))
    trial = read_trial(tmp_path)
    assert [row["env_runners"]["accuracy"] for row in trial.rows] == [0.1, 0.25]
    assert trial.state == "running, or interrupted"


@pytest.mark.parametrize(
    ("file", "age_s", "state"),
    [("error.txt", 0, "failed"), ("error.txt", 9, "running, or interrupted"), ("summary.json", 9, "running, or interrupted")],
)
def test_state_of_a_trial_without_a_last_result(tmp_path, file, age_s, state) -> None:
    """An older error is one that the trial was begun again after; an older summary is one of a run that was interrupted."""
    (tmp_path / "result.json").write_text('{"training_iteration": 1, "done": false}\n')
    (tmp_path / file).write_text("{}")
    then = (tmp_path / "result.json").stat().st_mtime_ns - age_s * 10**9
    os.utime(tmp_path / file, ns=(then, then))
    assert read_trial(tmp_path).state == state


def test_trials_are_found_below_a_folder_but_not_in_checkpoints(tmp_path) -> None:
    for name in ("b", "a"):
        write_trial(tmp_path / "experiment" / name, iterations=1)
    inside = tmp_path / "experiment" / "a" / "checkpoint_000000"
    inside.mkdir()
    (inside / "result.json").write_text("{}\n")
    assert [trial.name for trial in find_trials(tmp_path)] == ["a", "b"]
    assert [trial.name for trial in find_trials(tmp_path / "experiment" / "b")] == ["b"]


@pytest.mark.parametrize(("name", "said"), [("none", "no such folder"), ("", "neither it nor a folder in it")])
def test_a_folder_without_trials_is_refused(tmp_path, name, said) -> None:
    with pytest.raises(ValueError, match=f"RUN_DIR .*{said}"):
        find_trials(tmp_path / name)


def test_flattened() -> None:
    assert flattened({"a": {"b": 1, "c": {"d": 2}}, "e": {}}) == {"a/b": 1, "a/c/d": 2, "e": {}}


def test_seconds_of_an_iteration_add_up() -> None:
    row = {"time_this_iter_s": 30.0, "timers": {"rollout": 10.0, "update": 8.0, "sync": 1.0}}
    values = plot_values(row | {"evaluation": {"env_runners": {"rollout_s": 6.0}}})
    phases = {key.removeprefix("seconds/"): value for key, value in values.items() if key.startswith("seconds/") and value}
    assert phases == {"rollout": 10.0, "update": 8.0, "sync": 1.0, "evaluation": 6.0, "rest": 5.0}


def test_curves_begin_with_the_accuracy_before_training(tmp_path) -> None:
    trial = read_trial(write_trial(tmp_path, iterations=4))
    drawn = trial_curves(trial, panels([trial]))
    assert drawn["x"]["iteration"] == [0, 1, 2, 3, 4]
    assert drawn["series"][HELD_OUT] == [0.25, None, None, None, pytest.approx(0.31667, abs=1e-5)]
    tokens = [row["env_runners"]["tokens"]["generated"] for row in trial.rows]
    assert drawn["x"]["generated tokens"] == [0, tokens[0], sum(tokens[:2]), sum(tokens[:3]), sum(tokens)]


def test_the_accuracy_before_training_alone_has_a_plot(tmp_path) -> None:
    trial = read_trial(write_trial(tmp_path, iterations=1))
    assert HELD_OUT in [key for panel in panels([trial]) for key in panel.series.values()]


def test_numbers_that_are_none_are_left_out_of_the_plots(tmp_path) -> None:
    rows = [{"env_runners": {"episode_return_mean": value}} for value in (1.0, math.nan, math.inf, "text", True)]
    trial = Trial(tmp_path, rows)
    assert [panel.title for panel in panels([trial])] == ["Reward"]
    assert trial_curves(trial, panels([trial]))["series"][REWARD] == [1.0, None, None, None, None]


def test_comparison_names_what_differs(tmp_path) -> None:
    settings = [{"lr": 1e-5, "buffer": {"noise": 0.0}}, {"lr": 1e-5, "buffer": {"noise": 0.5}}, {"lr": 1e-5, "seed": 3}]
    trials = [Trial(tmp_path / str(number), params=params) for number, params in enumerate(settings)]
    assert differing_keys(trials) == ["buffer/noise", "seed"]
    table = compared(trials)
    assert table.labels == ["noise=0.0, seed=(default)", "noise=0.5, seed=(default)", "noise=(default), seed=3"]
    assert [row[:2] for row in table.rows] == [["0.0", "(default)"], ["0.5", "(default)"], ["(default)", "3"]]


def test_trials_of_the_same_settings_have_different_labels(tmp_path) -> None:
    params = [{"name": "x" * 80, "p": 1}, {"name": "x" * 80, "p": 2}]
    labels = compared([Trial(tmp_path, params=values) for values in params]).labels
    assert labels == ["p=1", "p=2"]
    assert compared([Trial(tmp_path), Trial(tmp_path)]).labels == ["trial 1", "trial 2"]


def test_comparison_tells_last_and_best(tmp_path) -> None:
    accuracies = [0.25, 0.75, 0.5]
    rows = [
        {"training_iteration": n, "time_total_s": 10.0 * n, "env_runners": {"accuracy": a, "tokens": {"policy": 100.0}}}
        for n, a in enumerate(accuracies, 1)
    ]
    table = compared([Trial(tmp_path, rows, state="ended")])
    values = dict(zip(table.columns, table.rows[0], strict=True))
    assert values["training accuracy, last"] == "0.500" and values["training accuracy, best"] == "0.750"
    assert values["generated tokens"] == "300" and values["seconds"] == "30" and values["iterations"] == "3"
    assert values["held-out accuracy, last"] == "" and values["state"] == "ended"


def test_table_and_curves_have_the_same_accuracy_before(tmp_path) -> None:
    evaluated = ([0.25, 0.25], [None, 0.5], [0.25, 0.75])  # the last: after an exploit, of another trial
    trials = [Trial(tmp_path, [{"rapo": {"accuracy_before": value}} for value in values]) for values in evaluated]
    table = compared(trials)
    assert [row[table.columns.index("held-out accuracy, before")] for row in table.rows] == ["0.250", "", "0.250"]
    assert [trial_curves(trial, panels(trials))["series"][HELD_OUT][0] for trial in trials] == [0.25, None, 0.25]


def test_what_is_zero_throughout_has_no_plot_but_reward_and_accuracy(tmp_path) -> None:
    sampled = {"episode_return_mean": 0.0, "accuracy": 0.0, "entropy": 0.0, "retrieval": {"entropy_before": 0.0}}
    rows = [{"env_runners": sampled}, {"env_runners": {**sampled, "retrieval": {"entropy_before": 0.5}}}]
    assert {panel.title: list(panel.series) for panel in panels([Trial(tmp_path, rows)])} == {
        "Reward": ["reward"],
        "Accuracy": ["training"],
        "Entropy": ["before"],
    }

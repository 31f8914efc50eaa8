"""Metrics of two hand-made trajectories, and what is written about them."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.algorithm.trial_files import write_trial_transcripts
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.errors import RolloutError
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.objective.retrieval_reward import PAPER
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import FALLBACK, Question, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

QUESTION = Question("q", "1 + 1?", "2")


def sample() -> SampleResult:
    """On-policy: one step of 2 tokens. Hybrid: 2 tokens (H 2.0), 1 observed, 3 retrieved, 2 tokens (H 1.0)."""
    on_policy = Trajectory("q", [1, 2, 3], reward=0.0, end="eos")
    on_policy.append_policy([5, 6], [-1.0, -1.0], [0.5, 1.5])
    hybrid = Trajectory("q", [1, 2, 3], hybrid=True, reward=1.0, correct=True, format_ok=True, end="answer", turn_ended=True)
    hybrid.append_policy([5, 6], [-1.0, -1.0], [2.0, 2.0])
    hybrid.append_observation([7])
    trace = StepTrace(id="t", question="", history="", text="x", reward=1.0)
    hybrid.append_retrieved([8, 8, 8], RetrievedTrace(trace, 0.8))
    hybrid.append_policy([9, 9], [-1.0, -1.0], [1.0, 1.0])
    stats = RolloutStats(seconds=2.0, retrieval_s=0.5, retrieval_queries=1)
    stats.ends = Counter(eos=1, answer=1)
    stats.tool_calls = Counter(python=3)
    stats.tool_failures = Counter({"python/timeout": 1})
    stats.deadlines = Counter(agent=2)
    return SampleResult([TrajectoryGroup(QUESTION, [on_policy, hybrid])], [stats])


def test_numbers() -> None:
    values = rollout_metrics(sample())
    expected = {
        "accuracy": 0.5,
        "format_rate": 0.5,
        "eos_rate": 0.5,
        "episode_return_mean": 0.5,
        "episode_len_mean": 1.5,
        "sequences_per_trajectory": 1,
        "entropy": (1.0 + 2.0 + 1.0) / 3,
        "groups": 1,
        "groups_without_signal": 0,
        "deadlines/agent": 2,
        "tokens/policy": 6,
        "tokens/observation": 1,
        "tokens/retrieved": 3,
        "tokens/response": 6 + 1 + 3,
        "tokens/generated": 6,
        "tokens/prompt": 6,
        "retrieval/per_trajectory": 0.5,
        "retrieval/hybrid_share": 0.5,
        "retrieval/retrieved_share": 3 / 8,
        "retrieval/retrieval_reward": math.tanh(2 * 0.5) * 2.0,  # ΔH = -(1 - 2) / 2
        "retrieval/entropy_before": 2.0,
        "retrieval/entropy_after": 1.0,
        "retrieval/similarity": 0.8,
        "tools/python/calls": 3,
        "tools/python/timeout": 1,
        "tools/calls_per_trajectory": 1.5,
        "ends/eos": 1,
        "ends/answer": 1,
        "tokens_per_s": 3.0,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


AS_RELEASED = ObjectiveSettings(step_entropy_tokens=1, step_entropy_reduction="sum", retrieval_timing="none")


def test_numbers_are_those_of_the_settings_that_are_trained_with() -> None:
    result = sample()
    hybrid = result.trajectories[1]
    hybrid.entropies[0], hybrid.entropies[-1] = 3.0, 9.0  # of steps (3, 2) and (1, 9) only 3 and 1 count
    values = rollout_metrics(result, AS_RELEASED)
    assert (values["retrieval/entropy_before"], values["retrieval/entropy_after"]) == (3.0, 1.0)
    assert values["retrieval/retrieval_reward"] == pytest.approx(math.tanh(4 / 3))
    assert values["entropy"] == pytest.approx((1.0 + 2.5 + 5.0) / 3)


def test_random_and_fallback_traces_are_counted_and_have_no_similarity() -> None:
    result = sample()
    hybrid = result.trajectories[1]
    other = StepTrace(id="o", question="", history="", text="x", reward=1.0, source="solver")
    hybrid.append_retrieved([8], RetrievedTrace(other, 0.0, noisy=True))
    hybrid.append_retrieved([8], RetrievedTrace(StepTrace(FALLBACK, "", "", "Think.", 0.0, source=FALLBACK), 0.0))
    values = rollout_metrics(result)
    assert (values["retrieval/count"], values["retrieval/noisy"], values["retrieval/fallback"]) == (3, 1, 1)
    assert values["retrieval/similarity"] == 0.8


def test_nothing_sampled_is_all_zeros() -> None:
    assert set(rollout_metrics(SampleResult()).values()) == {0.0}


def test_transcripts_are_one_line_a_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "transcripts" / "iteration_00001.jsonl"
    write_transcripts(str(path.parent), path.name, sample().groups)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [0.0, 1.0]
    assert rows[1]["kinds"] == [0, 0, 1, 2, 2, 2, 0, 0] and rows[1]["retrievals"][0]["trace_id"] == "t"
    assert list(path.parent.iterdir()) == [path]
    assert rows[1]["retrieval_reward"] == pytest.approx(math.tanh(1.0) * 2.0)
    write_transcripts(str(path.parent), path.name, sample().groups, objective=AS_RELEASED)
    assert json.loads(path.read_text().splitlines()[1])["retrieval_reward"] == pytest.approx(math.tanh(1.0))


def test_summary_keeps_the_first_and_the_latest_accuracy() -> None:
    summary = RunSummary()
    for accuracy in (0.1, 0.2, 0.4):
        summary.take_evaluation({"accuracy": accuracy, "num_episodes": 128.0})
    summary.count(sample(), 2.0)
    restored = RunSummary()
    restored.set_state(summary.get_state())
    assert restored.as_dict(10.0) == {
        "accuracy_before": 0.1,
        "accuracy_after": 0.4,
        "accuracy_best": 0.4,
        "evaluated_questions": 128,
        "seconds": 10.0,
        "tokens_per_s": 3.0,
        "retrievals": 1,
    }


def test_an_accuracy_after_an_update_is_not_the_one_before_training() -> None:
    summary = RunSummary()
    summary.count(sample(), 2.0)
    for accuracy in (0.3, 0.2):
        summary.take_evaluation({"accuracy": accuracy, "num_episodes": 128.0})
    assert (summary.accuracy_before, summary.accuracy_after, summary.accuracy_best) == (None, 0.2, 0.3)


def test_the_budget_leaves_room_for_one_iteration_and_an_evaluation() -> None:
    summary = RunSummary(evaluation_s=20.0)
    summary.end_iteration(100.0)
    summary.end_iteration(130.0)
    summary.end_iteration(155.0)
    assert summary.expected_end_s == 155.0 + 30.0 + 20.0


def test_reward_terms_are_logged_one_by_one() -> None:
    result = sample()
    assert not [key for key in rollout_metrics(result) if key.startswith("reward/")]  # this environment names none
    right, wrong = result.trajectories
    right.reward_terms, wrong.reward_terms = {"correct": 1.0, "format": 0.25}, {"correct": 0.5, "brief": -0.5}
    wrong.score_failure = "judge/unreachable"
    values = {key: value for key, value in rollout_metrics(result).items() if key.startswith("reward/")}
    assert values == {
        "reward/correct": 0.75,
        "reward/format": 0.125,
        "reward/brief": -0.25,
        "reward/failures/judge/unreachable": 1.0,
    }


def test_the_newest_transcripts_are_kept_and_nobody_elses_files_go(tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    others = ("iteration_1.jsonl", "iteration_00001.jsonl.bak", "my_iteration_00001.jsonl", "iteration_00001.json")
    folder.mkdir()
    for name in (*others, "iteration_00000.jsonl.partial"):  # the last: of a process that was killed
        (folder / name).write_text("mine")
    (folder / "iteration_00000.jsonl").mkdir()

    def numbers(iteration: int, keep: int | bool = 2) -> list[int]:
        settings = SimpleNamespace(run=SimpleNamespace(transcripts=keep), objective=PAPER)
        trial = SimpleNamespace(settings=settings, iteration=iteration - 1, logdir=str(tmp_path), _storage=None)
        write_trial_transcripts(trial, sample().groups)
        return sorted(int(file.name[10:15]) for file in folder.iterdir() if file.name not in others and file.is_file())

    kept = [numbers(iteration) for iteration in (1, 2, 3, 4, 5, 4)]  # the last: resumed from the checkpoint of iteration 3
    assert kept == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5]]
    assert {*others, "iteration_00000.jsonl"} <= {file.name for file in folder.iterdir()}
    assert numbers(9, keep=True) == numbers(10, keep=False) == [4, 5, 9]


def failing(*errors: str) -> SampleResult:
    """A group whose trajectories failed with these errors; "": one that went well."""
    ends = [Trajectory("q", [1], end="error" if error else "answer", error=error) for error in errors]
    return SampleResult([TrajectoryGroup(QUESTION, ends)])


def test_where_all_fail_the_most_frequent_cause_is_named() -> None:
    message = "all 3 trajectories of 1 questions failed, 2 of them with: env.step failed: port 9 is closed."
    with pytest.raises(RolloutError, match=message):
        failing("too long", "env.step failed: port 9 is closed", "env.step failed: port 10 is closed").require_usable()
    failing("too long", "").require_usable()
    SampleResult().require_usable()


def test_what_could_not_begin_behind_given_steps_ends_no_run() -> None:
    refused, broken = failing("no room", "no room"), failing("env.step failed: port 9 is closed")
    for trajectory in refused.trajectories:
        trajectory.start_refused = True
    refused.require_usable()
    refused.extend(broken)
    with pytest.raises(RolloutError, match="all 1 trajectories"):
        refused.require_usable()

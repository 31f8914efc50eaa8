"""Every warning on the result of a real iteration, changed so that it should hold, and on the real one, where none does."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from places import SUPPORT

from rapo_rllib.monitoring.warning_rules import ALARMS, PATIENCE, RECENT, RULES
from rapo_rllib.monitoring.warnings import WarningWatch, warnings_of

HEALTHY: dict[str, Any] = json.loads((SUPPORT / "real_result.json").read_text(encoding="utf-8"))
CONFIG = {"num_hybrid": 4}
SAMPLED, LEARNED = "env_runners/", "learners/default_policy/"


def changed(changes: dict[str, float], iteration: int = 1) -> dict[str, Any]:
    """The real result with other numbers under flat names."""
    result = copy.deepcopy(HEALTHY) | {"training_iteration": iteration}
    for name, value in changes.items():
        *folders, last = name.split("/")
        place = result
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return result


def after(changes: dict[str, float], count: int = PATIENCE, config: dict[str, Any] = CONFIG) -> dict[str, Any]:
    """Warnings of ``count`` iterations that all look like that, by name."""
    found = warnings_of([changed(changes, number + 1) for number in range(count)], config)
    return {warning.name: warning for warning in found}


NOTHING = {SAMPLED + "retrieval/count": 0.0}
RIGHT = {SAMPLED + "retrieval/retrieved_count": 80.0, SAMPLED + "retrieval/others_count": 90.0}
HARMS = RIGHT | {SAMPLED + "retrieval/accuracy_retrieved": 0.15, SAMPLED + "retrieval/accuracy_others": 0.3}
COPIED = {SAMPLED + "retrieval/wrong_answers_count": 4.0, SAMPLED + "retrieval/wrong_answers_copied": 0.75}
SHOWN = {SAMPLED + "retrieval/count": 40.0, SAMPLED + "retrieval/shows_answer": 0.8}
NO_STARTS = {SAMPLED + "starts/groups_without": 6.0, SAMPLED + "starts/asked": 9.0}
FELL = {"rapo/accuracy_best": 0.195, "rapo/accuracy_after": 0.031, "rapo/evaluated_questions": 128}
GONE = {SAMPLED + "retrieval/queries": 20.0, SAMPLED + "retrieval/failures": 15.0}
LOST, RLLIB = {"sampling/env_runners_lost": 2}, "fault_tolerance/num_"
CASES = [
    ("answers_shown", SHOWN, "80% of the steps that are shown hold the answer", "hide_answers"),
    ("held_out_fell", FELL, "fell from 19.5% to 3.1%, by 4.1 standard errors", "checkpoint"),
    ("retrieval_harms", HARMS, "15% of the trajectories that retrieve are right, 30% of the others", "hide_answers"),
    ("answers_copied", COPIED, "75% of the wrong answers", "question: same"),
    ("no_starts", NO_STARTS, "67% of the groups that may begin", "expert_traces"),
    ("little_covered", {"buffer/coverage": 0.15}, "step traces for 15% of the training questions", "max_traces"),
    ("nothing_retrieved", NOTHING | {SAMPLED + "retrieval/queries": 0.0}, "no trajectory asked", "protocol.examples"),
    ("nothing_retrieved", NOTHING | {SAMPLED + "retrieval/empty": 15.0}, "nothing suitable", "filter"),
    ("nothing_retrieved", NOTHING | {SAMPLED + "retrieval/skipped": 15.0}, "do not fit", "max_response_tokens"),
    ("nothing_retrieved", NOTHING | {SAMPLED + "retrieval/failures": 15.0}, "does not answer", "uri"),
    ("retrieval_failures", {SAMPLED + "retrieval/failures": 3.0}, "20% of the retrievals", "above 50%"),
    ("retrieval_failures", GONE, "75% of the retrievals failed", "step_trace_buffer.uri"),
    ("equal_rewards", {SAMPLED + "groups_without_signal": 8.0, SAMPLED + "accuracy": 0.0}, "every group has", "easier"),
    ("equal_rewards", {SAMPLED + "groups_without_signal": 6.0, SAMPLED + "accuracy": 0.9}, "75% of the groups", "harder"),
    ("equal_rewards", {SAMPLED + "groups_without_signal": 4.0, SAMPLED + "accuracy": 0.5}, "50% of the groups", "dynamic"),
    ("never_rewarded", {SAMPLED + "accuracy": 0.0, SAMPLED + "episode_return_mean": 0.0}, "in 5 iterations", "scorer"),
    ("cut_for_length", {SAMPLED + "ends/length": 40.0}, "62% of the trajectories", "max_response_tokens"),
    ("failed_trajectories", {SAMPLED + "ends/error": 8.0}, "12% of the trajectories failed", "log"),
    ("wrong_format", {SAMPLED + "format_rate": 0.03125}, "only 3%", "protocol.examples"),
    ("tool_errors", {SAMPLED + "tools/python/timeout": 35.0}, "60% of the calls of python failed, mostly: timeout", "limits"),
    ("mismatch", {LEARNED + "truncated": 0.25}, "25% of the importance weights", "engine.dtype"),
    ("mismatch", {LEARNED + "mismatch": 0.3}, "0.3 nats", "engine.dtype"),
    ("clipped", {LEARNED + "clipped_low": 0.2, LEARNED + "clipped_high": 0.15}, "35% of the tokens", "lr"),
    ("skipped_steps", {LEARNED + "num_skipped_steps": 1}, "1 optimiser steps", "lr"),
    ("unscored", {SAMPLED + "reward/failures/timeout": 16.0}, "25% of the trajectories", "scorer"),
    ("lost_env_runners", {RLLIB + "remote_worker_restarts": 2}, "so far 2 were restarted", "memory"),
    ("lost_env_runners", {RLLIB + "env_runners_dropped_lifetime": 1}, "1 did not answer in time", "log"),
    ("lost_env_runners", {"evaluation/num_remote_worker_restarts": 1}, "so far 1 were restarted", "memory"),
    ("lost_env_runners", LOST, "lost, 2 of late", "log"),
]


@pytest.mark.parametrize(("name", "changes", "text", "advice"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_a_warning_says_what_holds_and_what_to_do(name: str, changes: dict[str, float], text: str, advice: str) -> None:
    found = after(changes)
    assert text in found[name].text and advice in found[name].advice


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} | {"entropy_collapse", "unhelped_fell"} == set(RULES)


def test_a_healthy_training_warns_of_nothing() -> None:
    assert after({}, count=12) == {}


@pytest.mark.parametrize(
    "name",
    ["nothing_retrieved", "retrieval_harms", "answers_copied", "equal_rewards", "cut_for_length", "tool_errors", "mismatch"],
)
def test_one_odd_batch_warns_of_nothing(name: str) -> None:
    (changes,) = [case[1] for case in CASES if case[0] == name][:1]
    assert name not in after(changes, count=RECENT - 1)
    results = [changed({}), changed({}), changed(changes), changed({}), changed({})]
    assert name not in {warning.name for warning in warnings_of(results, CONFIG)}


def test_what_an_evaluation_lost_is_said_until_the_next_one() -> None:
    lost = {"evaluation/num_remote_worker_restarts": 1, "evaluation/num_healthy_workers": 2}
    found = {warning.name: warning.text for warning in warnings_of([changed({}), changed(lost), changed({})], CONFIG)}
    assert "so far 1 were restarted" in found["lost_env_runners"] and "2 are at work" in found["lost_env_runners"]


def test_half_failing_is_said_at_once() -> None:
    half = {SAMPLED + "ends/error": 32.0}
    assert "50% of the trajectories failed" in after(half, count=1)["failed_trajectories"].text
    assert "failed_trajectories" not in after({SAMPLED + "ends/error": 31.0}, count=1)


def test_where_all_groups_are_of_single_steps_no_retrieval_is_missed() -> None:
    missed = NOTHING | {SAMPLED + "retrieval/queries": 0.0}
    groups = HEALTHY["env_runners"]["groups"]
    assert "nothing_retrieved" not in after(missed | {SAMPLED + "single_steps/groups": groups})
    assert "nothing_retrieved" in after(missed | {SAMPLED + "single_steps/groups": groups - 1})


@pytest.mark.parametrize(("config", "prob"), [({"num_hybrid": 0}, 0.5), ({}, 0.5), ({"num_hybrid": 4}, 0.0)])
def test_where_retrieval_is_off_none_is_missed(config: dict[str, Any], prob: float) -> None:
    assert after(NOTHING | {SAMPLED + "retrieval/queries": 0.0, SAMPLED + "retrieval_prob": prob}, config=config) == {}


@pytest.mark.parametrize(
    ("name", "holds", "changes", "config"),
    [
        ("retrieval_harms", HARMS, {SAMPLED + "retrieval/accuracy_retrieved": 0.27}, CONFIG),  # 3 points: chance
        ("retrieval_harms", HARMS, {SAMPLED + "retrieval/accuracy_retrieved": 0.45}, CONFIG),  # better
        ("retrieval_harms", HARMS, {SAMPLED + "retrieval/retrieved_count": 9.0}, CONFIG),
        ("retrieval_harms", HARMS, {SAMPLED + "retrieval/others_count": 9.0}, CONFIG),
        ("retrieval_harms", HARMS, {}, {"num_hybrid": 4, "hybrid_groups": "failed"}),
        ("answers_shown", SHOWN, {SAMPLED + "retrieval/count": 9.0}, CONFIG),
        ("answers_shown", SHOWN, {SAMPLED + "retrieval/shows_answer": 0.5}, CONFIG),
        ("answers_copied", COPIED, {SAMPLED + "retrieval/wrong_answers_count": 3.0}, CONFIG),
        ("answers_copied", COPIED, {SAMPLED + "retrieval/wrong_answers_copied": 0.2}, CONFIG),
        ("little_covered", {"buffer/coverage": 0.1}, {}, {"num_hybrid": 0}),  # nobody asks it
    ],
)
def test_what_may_be_chance_or_is_meant_so_is_no_warning(
    name: str, holds: dict[str, float], changes: dict[str, float], config: dict[str, Any]
) -> None:
    assert name in after(holds) and name not in after(holds | changes, config=config)


def test_entropy_collapse_is_seen_against_the_beginning() -> None:
    falling = [0.9, 0.8, 0.7, 0.5, 0.3, 0.08, 0.05, 0.04, 0.03]
    results = [changed({SAMPLED + "entropy": value}, number + 1) for number, value in enumerate(falling)]
    (warning,) = warnings_of(results, CONFIG)
    assert (warning.name, warning.iteration) == ("entropy_collapse", 8)
    assert warning.text.startswith("the entropy fell from 0.8 to 0.057 nats")
    low_from_the_start = [changed({SAMPLED + "entropy": 0.05}, number + 1) for number in range(9)]
    assert warnings_of(low_from_the_start, CONFIG) == []


def test_a_warning_begins_once_and_holds_while_it_holds() -> None:
    watch = WarningWatch()
    cut, healthy = {SAMPLED + "ends/length": 64.0}, {SAMPLED + "ends/length": 0.0}
    new = [bool(watch.take(changed(changes), CONFIG)) for changes in [cut] * 4 + [healthy] * 3 + [cut] * 3]
    assert new == [False, False, True, *[False] * 7]
    assert [warning.name for warning in watch.holding] == ["cut_for_length"]
    watch.take(changed(healthy), CONFIG), watch.take(changed(healthy), CONFIG)
    assert watch.holding == [] and len(watch.begun) == 1


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"training_iteration": 1, "env_runners": {"episode_return_mean": float("nan"), "num_episodes": 0}},
        {"training_iteration": 1, "env_runners": {"episode_return_mean": -200.0, "num_episodes": 3, "module": {"a": [1, 2]}}},
        {"env_runners": None, "learners": {"default_policy": {"entropy": None, "name": "x"}}},
    ],
)
def test_an_algorithm_that_reports_none_of_it_gets_no_warning(result: dict[str, Any]) -> None:
    assert warnings_of([result] * 9, CONFIG) == []


def test_a_buffer_that_does_not_answer_is_told_of_after_one_iteration_and_at_the_end() -> None:
    assert "retrieval_failures" in after(GONE, count=1) and "retrieval_failures" in ALARMS
    few = {SAMPLED + "retrieval/queries": 19.0, SAMPLED + "retrieval/failures": 19.0}
    assert "retrieval_failures" not in after(few, count=1)

"""Which groups a training step keeps. Sampling is scripted; the algorithm's own rule is what runs."""

from __future__ import annotations

from typing import Any

import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rapo_rllib import RAPO, RAPOConfig
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.rollout_metrics import SampleResult
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup


def algorithm(monkeypatch: pytest.MonkeyPatch, has_signal: Any, **changes: Any) -> tuple[RAPO, list[list[str]]]:
    """A RAPO that was never set up, whose questions have signal where ``has_signal(how many came before)``."""
    rapo = RAPO.__new__(RAPO)
    config = RAPOConfig().training(questions_per_step=4, group_size=2, num_hybrid=0, num_minibatches=1, **changes)
    rapo.config, rapo.metrics = config, MetricsLogger(root=True)
    rapo._cursor = QuestionCursor(SeedQuestions(100), seed=0)
    rounds: list[list[str]] = []

    def roll_out(batch: list[Question]) -> SampleResult:
        before = sum(map(len, rounds))
        rounds.append([question.id for question in batch])
        rewards = [1.0 if has_signal(before + index) else 0.0 for index in range(len(batch))]
        pairs = zip(batch, rewards, strict=True)
        return SampleResult([TrajectoryGroup(q, [Trajectory(q.id, (), reward=r), Trajectory(q.id, ())], 0) for q, r in pairs])

    monkeypatch.setattr(rapo, "_roll_out", roll_out)
    return rapo, rounds


def test_without_it_one_round_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rapo, rounds = algorithm(monkeypatch, lambda index: False)
    assert len(rapo._sample().groups) == 4
    assert len(rounds) == 1


def test_groups_without_signal_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    rapo, rounds = algorithm(monkeypatch, lambda index: index % 2 == 0, dynamic_sampling=True)
    kept = rapo._sample()
    assert [len(batch) for batch in rounds] == [4, 2, 1]  # 2 of 4, 1 of 2, 1 of 1
    assert len(kept.groups) == 4
    assert all(group.rewards == [1.0, 0.0] for group in kept.groups)
    asked = [name for batch in rounds for name in batch]
    assert len(set(asked)) == 7
    assert kept.groups_dropped == len(kept.left_out) == 3
    assert {group.question.id for group in [*kept.groups, *kept.left_out]} == set(asked)


def test_rounds_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    rapo, rounds = algorithm(monkeypatch, lambda index: index == 0, dynamic_sampling=True, max_sampling_rounds=3)
    assert len(rapo._sample().groups) == 1
    assert [len(batch) for batch in rounds] == [4, 3, 3]


def test_no_signal_anywhere_keeps_the_first_round_for_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    rapo, rounds = algorithm(monkeypatch, lambda index: False, dynamic_sampling=True, max_sampling_rounds=2)
    kept = rapo._sample()
    assert len(kept.groups) == 4 and [group.question.id for group in kept.left_out] == rounds[1]
    assert len(rounds) == 2

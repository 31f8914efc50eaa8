"""Which groups a training step keeps. Sampling is scripted; the driver's own rule is what runs."""

from __future__ import annotations

from typing import Any

import pytest

import rapo_rllib.algorithm.sampling as module
from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.sampling import MAX_SAMPLING_ROUNDS, Sampling, sample_batch
from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.settings import ObjectiveSettings, UpdateSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup


def scripted(monkeypatch: pytest.MonkeyPatch, has_signal: Any, **changes: Any) -> tuple[Sampling, list[list[str]], list[float]]:
    """Sampling of questions that have signal where ``has_signal(how many came before)``; its rounds, and their chances."""
    config = RAPOConfig().training(questions_per_step=4, group_size=2, num_hybrid=0, num_minibatches=1, **changes)
    sampling = Sampling(config.settings, QuestionCursor(SeedQuestions(100), seed=0), None, lambda: None)
    rounds: list[list[str]] = []
    drawn_with: list[float] = []

    def sample(group: Any, batch: list[Question], *, retrieval_prob: float, **arguments: Any) -> SampleResult:
        drawn_with.append(retrieval_prob)
        before = sum(map(len, rounds))
        rounds.append([question.id for question in batch])
        rewards = [1.0 if has_signal(before + index) else 0.0 for index in range(len(batch))]
        pairs = zip(batch, rewards, strict=True)
        groups = [TrajectoryGroup(q, [Trajectory(q.id, (), reward=r), Trajectory(q.id, ())], 0) for q, r in pairs]
        return SampleResult(groups)

    monkeypatch.setattr(module, "sample_questions", sample)
    return sampling, rounds, drawn_with


@pytest.mark.parametrize(
    ("has_signal", "dynamic", "sizes", "kept"),
    [
        (lambda index: False, False, [4], 4),
        (lambda index: index % 2 == 0, True, [4, 2, 1], 4),  # 2 of 4, 1 of 2, 1 of 1
        (lambda index: index == 0, True, [4, 3, 3, 3], 1),
        (lambda index: False, True, [4] * MAX_SAMPLING_ROUNDS, 4),  # nothing has: the first round is for the metrics
    ],
    ids=["without it", "replaced", "rounds are limited", "no signal anywhere"],
)
def test_groups_without_signal_are_replaced(
    monkeypatch: pytest.MonkeyPatch, has_signal: Any, dynamic: bool, sizes: list[int], kept: int
) -> None:
    sampling, rounds, _ = scripted(monkeypatch, has_signal, dynamic_sampling=dynamic)
    result = sampling.take()
    asked = [name for names in rounds for name in names]
    signals = [name for index, name in enumerate(asked) if has_signal(index)]
    assert [len(names) for names in rounds] == sizes and len(set(asked)) == len(asked)
    names = [group.question.id for group in result.groups]
    assert names == (signals or rounds[0]) and len(names) == kept
    assert [group.question.id for group in result.left_out] == [name for name in asked if name not in names]
    assert all(group.rewards == [float(bool(signals)), 0.0] for group in result.groups)
    assert result.groups_dropped == (len(asked) - len(signals)) * dynamic


CRASHED = Trajectory("q", (), end="error")


@pytest.mark.parametrize(
    ("rewards", "crashed", "signal"),
    [
        ([1.0, 0.0], 0, True),
        ([1.0, 0.0], 2, True),
        ([1.0, 1.0], 2, False),  # the crashed ones' rewards of 0 are no outcome
        ([-1.0, -1.0], 1, False),
        ([1.0], 1, False),  # what is alone has nothing to be compared with
        ([], 2, False),
    ],
)
def test_what_crashed_is_no_signal_to_anybody(rewards: list[float], crashed: int, signal: bool) -> None:
    """Dynamic sampling, the metric of a rollout and the learner agree, with off-policy members too."""
    members = [Trajectory("q", (), reward=reward, token_ids=[1], kinds=[0], logprobs=[-1.0], end="eos") for reward in rewards]
    group = TrajectoryGroup(Question("q", ""), [*[CRASHED] * crashed, *members])
    settings = UpdateSettings(questions_per_step=1, dynamic_sampling=True)
    kept = sample_batch(
        lambda batch: SampleResult([group]), QuestionCursor(SeedQuestions(1), seed=0), settings, ObjectiveSettings()
    )
    assert kept.groups_dropped == MAX_SAMPLING_ROUNDS * (not signal)
    assert rollout_metrics(SampleResult([group]))["groups_without_signal"] == (not signal)
    trained, statistics = sample_groups([group], ObjectiveSettings())
    assert (len(trained), statistics["num_groups_without_signal"]) == (signal, not signal)
    assert statistics["num_failed_trajectories"] == crashed
    assert group.rewards == rewards and group.members == members


def test_an_expert_beside_rollouts_that_all_crashed_is_no_member() -> None:
    expert = Trajectory("q", (), reward=1.0, origin="expert")
    assert TrajectoryGroup(Question("q", ""), [CRASHED], off_policy=[expert]).members == []
    group = TrajectoryGroup(Question("q", ""), [Trajectory("q", ())], off_policy=[expert])
    assert [t.reward for t in group.members] == [0.0, 1.0]


def test_what_a_batch_is_drawn_with_is_what_schedules_said_when_it_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds of a batch have one chance; it is logged with the batch, not with the step that trains on it."""
    changes = {"dynamic_sampling": True, "retrieval_prob": [[0, 1.0], [100, 0.0]]}
    sampling, _, drawn_with = scripted(monkeypatch, lambda index: False, **changes)
    result = sampling.take()
    sampling.reached(75)
    assert drawn_with == [1.0] * MAX_SAMPLING_ROUNDS
    assert rollout_metrics(result)["retrieval_prob"] == 1.0
    assert rollout_metrics(sampling.take())["retrieval_prob"] == 0.25 == drawn_with[-1] == sampling.retrieval_prob

"""The driver's part of off-policy mixing: made from the config, before dynamic sampling decides, and in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_tiny_model

import rapo_rllib.algorithm.sampling as module
from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.off_policy import make_mixing
from rapo_rllib.algorithm.preflight import check_parts
from rapo_rllib.algorithm.sampling import Sampling
from rapo_rllib.batching.off_policy import OffPolicyMixing
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

OPTIONS = {"num_train": 30, "num_test": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def make_config(folder: Path, **training: Any) -> RAPOConfig:
    settings = {"questions_per_step": 4, "group_size": 2, "num_minibatches": 1, "model": {"name_or_path": str(folder)}}
    return RAPOConfig().environment("rapo/word_problems", env_config=OPTIONS).training(**{**settings, **training})


def scripted(config: RAPOConfig, monkeypatch: pytest.MonkeyPatch, correct: bool) -> tuple[Sampling, OffPolicyMixing | None]:
    """Sampling whose env runners answer every question right, or every one wrong."""
    config.validate()
    mixing = make_mixing(config.settings, config.question_source, Progress("test"))
    cursor = QuestionCursor(config.question_source.questions("train"), seed=0)

    def answer(question: Question) -> Trajectory:
        trajectory = Trajectory(question.id, [1], reward=float(correct), correct=correct, end="answer")
        trajectory.append_policy([2, 3], [-1.0, -1.0], [1.0, 1.0])
        return trajectory

    def sample(group: Any, batch: list[Question], **arguments: Any) -> SampleResult:
        assert arguments["retrieval_prob"] == config.retrieval_prob
        return SampleResult([TrajectoryGroup(q, [answer(q), answer(q)]) for q in batch])

    monkeypatch.setattr(module, "sample_questions", sample)
    return Sampling(config.settings, cursor, mixing, lambda: None), mixing


def test_failed_groups_with_an_expert_have_signal_and_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"preset": "luffy", "dynamic_sampling": True, "retrieval_prob": 0.25}
    sampling, mixing = scripted(make_config(folder, **changes), monkeypatch, correct=False)
    result = sampling.take()
    assert len(result.groups) == 4 and result.groups_dropped == 0
    assert rollout_metrics(result)["retrieval_prob"] == 0.25
    for group in result.groups:
        (expert,) = group.off_policy
        assert (expert.question_id, expert.reward, expert.prompt_ids) == (group.question.id, 1.0, [1])
        assert group.question.answer in expert.text
    assert mixing is not None
    metrics = mixing.metrics(result.groups)
    assert (metrics["off_policy/trajectories"], metrics["off_policy/stored"]) == (4, 30)
    # what is said of rollouts is of rollouts
    assert rollout_metrics(result)["accuracy"] == 0 and rollout_metrics(result)["tokens/policy"] == 4 * 2 * 2


def test_without_an_expert_they_are_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, mixing = scripted(make_config(folder, preset="dapo"), monkeypatch, correct=False)
    assert mixing is None
    result = sampling.take()
    assert all(group.off_policy == [] for group in result.groups)
    assert result.groups_dropped == 16


def test_replay_is_in_the_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(folder, preset="replay")
    sampling, mixing = scripted(config, monkeypatch, correct=True)
    assert mixing is not None
    mixing.source.remember(sampling.take().groups)
    restored = make_mixing(config.settings, config.question_source, Progress("test"))
    assert isinstance(restored, OffPolicyMixing)
    restored.source.set_state(mixing.source.get_state())
    assert restored.source.metrics() == mixing.source.metrics() == {"stored": 8.0, "questions": 4.0}


class NoExpert:
    """A text environment without one; only its class is looked at."""


def test_an_environment_without_expert_is_refused_before_anything_starts(folder: Path) -> None:
    config = make_config(folder, preset="luffy", num_hybrid=0)
    check_parts(config)
    config.env = NoExpert
    with pytest.raises(ValueError, match=r"off_policy_source = 'expert', but env .*NoExpert.* has no expert: name 'replay'"):
        make_mixing(config.settings, config.question_source, Progress("test"))
    untrained = make_config(folder, preset="luffy")
    untrained.env, untrained.env_config = "rapo/questions", {"dataset": "x.jsonl"}
    with pytest.raises(ValueError, match=r"env_config\.traces = None"):
        make_mixing(untrained.settings, untrained.question_source, Progress("test"))

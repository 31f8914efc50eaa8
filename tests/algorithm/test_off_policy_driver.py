"""The driver's part of off-policy mixing: made from the config, before dynamic sampling decides, and in checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_tiny_model

import rapo_rllib.algorithm.sampling as module
from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.off_policy import make_mixing, make_starts
from rapo_rllib.algorithm.preflight import check_parts
from rapo_rllib.algorithm.sampling import Sampling
from rapo_rllib.batching.credit import group_has_signal
from rapo_rllib.batching.off_policy import OffPolicyMixing
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.settings import ObjectiveSettings
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
    guides = make_starts(config.settings, config.question_source, Progress("test"))
    return Sampling(config.settings, cursor, mixing, lambda: None, *guides), mixing


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


class AskedBySeed:
    """A text environment whose questions are seeds; only its class is looked at."""


class NoExpert:
    """A text environment without one; only its class is looked at."""


def test_an_environment_without_expert_is_refused_before_anything_starts(folder: Path) -> None:
    config = make_config(folder, preset="luffy", num_hybrid=0)
    check_parts(config)
    config.env = NoExpert
    with pytest.raises(ValueError, match=r"expert_traces = 'expert', but env .*NoExpert.* has no expert: name a trace file"):
        make_mixing(config.settings, config.question_source, Progress("test"))
    untrained = make_config(folder, preset="luffy")
    untrained.env, untrained.env_config = "rapo/questions", {"dataset": "x.jsonl"}
    with pytest.raises(ValueError, match=r"env_config\.traces = None"):
        make_mixing(untrained.settings, untrained.question_source, Progress("test"))


def test_a_share_of_the_groups_begins_behind_the_solvers_steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, _ = scripted(make_config(folder, expert_start_share=1.0, num_hybrid=0), monkeypatch, correct=True)
    results = [sampling.take() for _ in range(5)]
    started = [group for result in results for group in result.groups if group.question.start]
    assert 0 < len(started) < 20 and all("<python>" in step for group in started for step in group.question.start)
    assert sum(result.values["starts/groups"] for result in results) == len(started)
    assert results[0].values["starts/groups_without"] == 0


def test_dynamic_sampling_learns_from_the_groups_that_it_drops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, _ = scripted(make_config(folder, preset="dapo", expert_start_share=1.0), monkeypatch, correct=False)
    values = sampling.take().values
    assert sum(value for name, value in values.items() if name.startswith("starts/right_of/")) == 0
    assert values["starts/groups"] > 4  # of 16 that were rolled out


def test_starts_are_read_from_a_file_too(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    config = make_config(folder, expert_start_share=0.5, expert_traces=str(file))
    with pytest.raises(ValueError, match=r"expert_traces = .*traces\.jsonl'?: no such file"):
        check_parts(config)
    question = config.question_source.questions("train")[0]
    steps = ["<python>1 + 1</python>", "<python>2 + 1</python>", "<answer>3</answer>"]
    row = {"id": "1", "source": "x", "question": question.text, "steps": steps, "reward": 0.0}
    file.write_text(json.dumps(row) + "\n")
    check_parts(config)
    with pytest.raises(ValueError, match=r"expert_traces = .*: no trajectory with a positive reward; name a"):
        make_starts(config.settings, config.question_source, Progress("test"))
    file.write_text(json.dumps({**row, "reward": 1.0}) + "\n")
    starts, rows = make_starts(config.settings, config.question_source, Progress("test"))
    assert starts is not None and len(starts) == 1 and rows is None
    file.write_text(json.dumps({**row, "steps": steps[1:], "reward": 1.0}) + "\n")
    with pytest.raises(ValueError, match=r"expert_start_share = 0\.5: no trajectory of the expert has more than 2 steps"):
        make_starts(config.settings, config.question_source, Progress("test"))


def test_questions_of_a_file_are_asked_as_the_job_asks_them(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    config = make_config(folder, expert_step_share=0.5, expert_traces=str(file))
    known = config.question_source.questions("train")[3]
    about = {"source": "x", "steps": ["<answer>3</answer>"], "reward": 1.0}
    rows = [{"id": str(n), "question": text, **about} for n, text in enumerate([f" {known.text}", "Another?"])]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, made = make_starts(config.settings, config.question_source, Progress("test"))
    assert made is not None
    assert {made.row(place).id for place in range(50)} == {known.id, "1"}
    config.env, config.env_config = AskedBySeed, {}
    with pytest.raises(ValueError, match="expert_traces names a file, and the environment's questions are seeds"):
        make_starts(config.settings, config.question_source, Progress("test"))
    mixed = make_config(folder, preset="luffy", expert_traces=str(file))
    mixed.env, mixed.env_config = AskedBySeed, {}
    with pytest.raises(ValueError, match="expert_traces names a file, and the environment's questions are seeds"):
        make_mixing(mixed.settings, mixed.question_source, Progress("test"))


def test_luffy_reads_a_file_of_others(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    config = make_config(folder, preset="luffy", expert_traces=str(file))
    known = config.question_source.questions("train")[3]
    about = {"source": "x", "steps": ["<answer>3</answer>"], "reward": 1.0}
    file.write_text(json.dumps({"id": "1", "question": known.text, **about}) + "\n")
    mixing = make_mixing(config.settings, config.question_source, Progress("test"))
    assert mixing is not None and mixing.source.metrics()["stored"] == 1
    rolled = Trajectory(known.id, [1], end="answer")
    (group,) = mixing.mixed([TrajectoryGroup(known, [rolled])])
    assert [one.text for one in group.off_policy] == ["<answer>3</answer>"]


def test_an_environment_without_expert_cannot_begin_inside(folder: Path) -> None:
    config = make_config(folder, expert_start_share=0.5)
    config.env = NoExpert
    with pytest.raises(ValueError, match=r"expert_traces = 'expert', but env .*NoExpert.* has no expert: name a"):
        make_starts(config.settings, config.question_source, Progress("test"))


def test_the_experts_step_is_a_member_where_all_others_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"preset": "luffy", "expert_step_share": 1.0}
    sampling, mixing = scripted(make_config(folder, **changes), monkeypatch, correct=False)
    groups = sampling.take().groups
    assert mixing is not None and mixing.metrics(groups)["off_policy/groups_without"] == 0
    for group in groups:
        (expert,) = group.off_policy
        assert expert.text == group.question.expected.partition("\n")[0] and len(expert.steps) == 1
        assert group_has_signal(group, ObjectiveSettings())


def test_single_steps_are_of_any_question_but_those_of_the_evaluation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"expert_step_share": [[0, 1.0], [100, 0.0]], "num_hybrid": 0}
    sampling, _ = scripted(make_config(folder, **changes), monkeypatch, correct=True)
    result = sampling.take()
    assert all(group.question.expected for group in result.groups)
    assert result.values["single_steps/groups"] == 4 and result.values["single_steps/accuracy"] == 1
    assert result.values["single_steps/groups_without_signal"] == 4
    sampling.reached(100)
    assert all(group.question.is_whole for group in sampling.take().groups)
    sampling, _ = scripted(make_config(folder, **changes, expert_start_share=1.0), monkeypatch, correct=True)
    assert all(group.question.expected for group in sampling.take().groups)  # what begins inside has the room that is left
    sampling.reached(100)
    found = [group.question for _ in range(4) for group in sampling.take().groups]
    assert any(question.start for question in found) and not any(question.expected for question in found)
    config = make_config(folder, **changes)
    source, settings = config.question_source, config.settings
    _, every = make_starts(settings, source, Progress("test"))
    asked = source.questions("train")[0]
    _, fewer = make_starts(settings, source, Progress("test"), [asked])
    assert every is not None and fewer is not None and len(fewer) < len(every)
    assert all(fewer.row(place).text != asked.text for place in range(300))


@pytest.mark.parametrize("key", ["expert_start_share", "expert_step_share"])
def test_an_agent_begins_by_itself(folder: Path, key: str) -> None:
    config = RAPOConfig().environment("rapo/agent", env_config={"agent": "own_agents:loop", "dataset": "unread.jsonl"})
    config.training(model={"name_or_path": str(folder)}, protocol={"format": "native"}, **{key: 0.5})
    with pytest.raises(ValueError, match=f"{key} = 0.5 with an agent: .* set it to 0"):
        check_parts(config)

"""Imitation of worked steps before the first iteration."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch
from chat_templates import tokenizer_of

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.warm_start import learning_rate, warm_start, worked_trajectories
from rapo_rllib.errors import NotFiniteError
from rapo_rllib.models.loading import load_tokenizer
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.worked_steps import Shown, choose_shown, split_shown, worked_tokens
from rapo_rllib.settings import ModelSettings, ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Question, TokenKind

CALLS = tuple(f"<python>{i} + 1</python>\n<result>\n{i + 1}\n</result>\n" for i in range(3))
EXPERT = ExpertTrajectory(Question("q", "How many?", "3"), (*CALLS, r"<answer>\boxed{3}</answer>"), 1.0, "solver")
OTHER = ExpertTrajectory(Question("r", "How far?", "9"), ("<python>4 + 5</python>\n<result>\n9\n</result>\n",), 1.0, "solver")


@pytest.fixture(scope="module")
def chat(small_model: str) -> ChatProtocol:
    return ChatProtocol(load_tokenizer(ModelSettings(name_or_path=small_model)), ProtocolSettings(system_prompt=""))


def written(chat: ChatProtocol, shown: dict[int, Shown]) -> tuple[str, str]:
    """The whole text, and what of its tokens is trained."""
    worked = worked_tokens(EXPERT, [1], chat, shown)
    trained = [token for token, kind in zip(worked.token_ids, worked.kinds, strict=True) if kind == TokenKind.EXPERT]
    assert chat.tokenizer.decode(worked.token_ids) == worked.text + chat.tokenizer.decode(chat.end_ids[:1])
    return worked.text, chat.tokenizer.decode(trained)


def test_a_fitting_step_trace_stands_for_the_step_and_is_not_trained(chat: ChatProtocol) -> None:
    text, trained = written(chat, {1: Shown(CALLS[1], True)})
    assert text == CALLS[0] + chat.retrieved_text(CALLS[1]) + CALLS[2] + EXPERT.steps[3]
    assert trained == "<python>0 + 1</python><python>2 + 1</python>" + EXPERT.steps[3] + "<|im_end|>"


def test_an_unfitting_one_is_passed_over_and_the_last_step_is_always_written(chat: ChatProtocol) -> None:
    text, trained = written(chat, {1: Shown(OTHER.steps[0], False), 3: Shown(EXPERT.steps[3], True)})
    assert text == (
        CALLS[0] + chat.retrieved_text(OTHER.steps[0]) + "".join(CALLS[1:])
        + chat.retrieved_text(EXPERT.steps[3]) + EXPERT.steps[3]
    )  # fmt: skip
    calls = "".join(f"<python>{i} + 1</python>" for i in range(3))
    assert trained == calls + EXPERT.steps[3] + "<|im_end|>"


def test_what_was_shown_to_the_author_is_not_trained(chat: ChatProtocol) -> None:
    shown = chat.retrieved_text(CALLS[1])
    steps = (CALLS[0], shown + CALLS[2], shown + EXPERT.steps[3])
    worked = worked_tokens(replace(EXPERT, steps=steps), [1], chat, {})
    assert worked.text == "".join(steps)
    trained = [token for token, kind in zip(worked.token_ids, worked.kinds, strict=True) if kind == TokenKind.EXPERT]
    calls = "<python>0 + 1</python><python>2 + 1</python>"
    assert chat.tokenizer.decode(trained) == calls + EXPERT.steps[3] + "<|im_end|>"
    assert len(worked.retrievals) == 2
    assert split_shown("<think><retrieve> is a tag</think>", ProtocolSettings()) == ("", "<think><retrieve> is a tag</think>")


def test_which_step_traces_are_shown() -> None:
    drawn = [choose_shown(EXPERT, [OTHER, EXPERT], random.Random(seed), 0.5, 0.5) for seed in range(400)]
    for shown in drawn:
        assert 0 not in shown
        for index, here in shown.items():
            assert here.text == (EXPERT.steps[index] if here.fits else OTHER.steps[0])
            if here.fits and index < 3:
                assert index + 1 not in shown  # the policy writes a step between two
    fitting = [here.fits for shown in drawn for here in shown.values()]
    assert 0.55 < sum(fitting) / len(fitting) < 0.78  # of the unfitting ones half were of the same question: not shown
    assert choose_shown(EXPERT, [OTHER], random.Random(0), 0.0, 0.5) == {}
    assert set(choose_shown(EXPERT, [OTHER], random.Random(0), 1.0, 0.0)) == {1, 2, 3}
    assert set(choose_shown(EXPERT, [], random.Random(0), 1.0, 1.0)) == {1, 3}


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(step, 40, 1.0) for step in range(40)]
    assert rates[:2] == [0.5, 1.0] and rates[-1] == pytest.approx(1 / 39)
    assert all(later < before for before, later in pairwise(rates[2:]))
    assert learning_rate(0, 1, 1.0) == 1.0


def job(folder: Path, model: str, **warm: Any) -> RAPOConfig:
    settings = {"num_trajectories": 24, "batch_size": 8, "lr": 3e-3, "num_epochs": 4, "folder": str(folder), **warm}
    return (
        RAPOConfig()
        .environment("rapo/word_problems", env_config={"num_train": 40, "steps": [2, 3], "tools": ["python"]})
        .learners(num_learners=0)
        .debugging(seed=0)
        .training(
            model={"name_or_path": model, "autocast_dtype": None},
            warm_start=settings,
            max_prompt_tokens=512,
            max_response_tokens=400,
            learner_num_threads=1,
        )
    )


def test_calls_are_those_of_the_models_own(tmp_path: Path, smollm2: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer_of("qwen25", smollm2).save_pretrained(tmp_path / "model")
    copy(smollm2 / "config.json", tmp_path / "model")
    config = job(tmp_path, str(tmp_path / "model"), num_trajectories=3, shown_share=0.0)
    config.training(protocol={"format": "native"}, max_prompt_tokens=900)
    config.validate()
    start = config.settings.warm_start
    assert start is not None
    for worked in worked_trajectories(config.settings, config.question_source, start):
        assert worked.text.count("<tool_call>") == len(worked.steps) - 1 and "</python>" not in worked.text
        assert worked.text.endswith("<|im_end|>") and worked.steps[-1].record == f"<answer>{worked.steps[-1].text}</answer>"
    file = tmp_path / "other.jsonl"
    row = {"id": "q", "source": "x", "question": "How many?", "gold": "3", "correct": True}
    file.write_text(json.dumps({**row, "steps": ["I wonder.", "<answer>3</answer>"]}))
    with pytest.raises(ValueError, match="no trajectory is correct and fits"):
        worked_trajectories(config.settings, config.question_source, replace(start, traces=str(file)))
    assert "warm_start: left out 1 trajectories that cannot be written: a step is read as the calls []" in caplog.text


def test_it_learns_and_is_kept(tmp_path: Path, small_model: str) -> None:
    from safetensors.torch import load_file

    first = warm_start(job(tmp_path, small_model), Progress("warm"))
    assert first is not None and not first.cached
    facts = first.facts
    assert (facts["num_trajectories"], facts["num_steps"]) == (24, 12)
    assert facts["loss_last"] < facts["loss_first"] - 0.5
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (small_model, first.folder))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    again = warm_start(job(tmp_path, small_model), Progress("warm"))
    assert again is not None and again.cached and (again.folder, again.facts) == (first.folder, facts)
    other = warm_start(job(tmp_path, small_model, num_epochs=1, shown_share=0.0), Progress("warm"))
    assert other is not None and not other.cached and other.folder != first.folder
    assert json.loads((Path(other.folder) / "warm_start.json").read_text())["num_steps"] == 3
    assert not list(tmp_path.glob(".*.partial"))


def test_adapters_are_trained_and_merged(tmp_path: Path, small_model: str) -> None:
    from safetensors.torch import load_file

    config = job(tmp_path, small_model, num_trajectories=8, num_epochs=2)
    config.training(
        model={"name_or_path": small_model, "autocast_dtype": None, "lora": {"rank": 4, "target_modules": ["q_proj"]}}
    )
    made = warm_start(config, Progress("warm"))
    assert made is not None
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (small_model, made.folder))
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved and all("q_proj" in name for name in moved) and set(after) == set(before)


def test_the_experts_questions_may_be_others(tmp_path: Path, small_model: str) -> None:
    config = job(tmp_path, small_model, shown_share=0.0, env_config={"steps": [3, 3]})
    found = worked_trajectories(config.settings, config.question_source, config.settings.warm_start)
    assert {len(trajectory.steps) for trajectory in found} == {4}  # three calls, and the answer
    assert config.env_config["steps"] != [3, 3]


def test_nothing_that_fits(tmp_path: Path, small_model: str) -> None:
    config = job(tmp_path, small_model)
    config.max_response_tokens = 10
    with pytest.raises(ValueError, match=r"warm_start\.traces = 'expert': no trajectory is correct and fits into max_prompt"):
        worked_trajectories(config.settings, config.question_source, config.settings.warm_start)


@pytest.mark.parametrize(("lr", "norm", "loss"), [(1e9, None, "nan|inf"), (1e-3, "inf", r"\d+\.\d+")], ids=["loss", "gradient"])
def test_a_step_that_is_not_finite_leaves_nothing_behind(
    tmp_path: Path, small_model: str, monkeypatch: pytest.MonkeyPatch, lr: float, norm: str | None, loss: str
) -> None:
    if norm is not None:
        monkeypatch.setattr("torch.nn.utils.get_total_norm", lambda gradients: torch.tensor(float(norm)))
    with pytest.raises(NotFiniteError, match=rf"step \d+ is not finite \(loss ({loss})\): lower warm_start\.lr = {lr}"):
        warm_start(job(tmp_path, small_model, lr=lr, num_epochs=1), Progress("warm"))
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and not path.name.startswith(".")]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lr": 0}, r"warm_start\.lr = 0"),
        ({"shown_share": 1.5}, r"warm_start\.shown_share = 1\.5"),
        ({"batch_size": 2.5}, r"warm_start\.batch_size = 2\.5"),
        ({"epochs": 2}, r"unknown key 'warm_start\.epochs': did you mean 'warm_start\.num_epochs'"),
        ({"traces": "some.jsonl", "env_config": {"steps": [1, 1]}}, r"leave env_config out, or set traces to 'expert'"),
        ({"env_config": {"stepps": [1, 1]}}, r"unknown key 'env_config\.stepps': did you mean 'env_config\.steps'"),
        ({"traces": "nowhere.jsonl"}, r"warm_start\.traces = 'nowhere\.jsonl': no such file"),
    ],
)
def test_wrong_values(tmp_path: Path, small_model: str, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        job(tmp_path, small_model, **wrong).preflight()

"""A run that goes on from its checkpoint, which is evaluated too, and its policy as other libraries read it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import run_here
from jobs import PROMPTED, Trial, TrialHere, at, built_here, short_job
from sums import write_sums

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Restored:
    """What was seen of a run that trained one more iteration."""

    iteration: int  # before it
    versions: tuple[int, int, int]  # of the weights in the engine: before, after, and with the state before set again
    result: dict[str, Any]
    trial: Trial
    policy: Path  # exported
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory, speaking_model: str, ray_session: None) -> tuple[TrialHere, Path]:
    """The main job with a small model after two iterations, and its checkpoint."""
    folder = tmp_path_factory.mktemp("checkpointed")
    algorithm = built_here(short_job(folder, model={"name_or_path": speaking_model}))
    try:
        trial = TrialHere(Path(algorithm.logdir), [algorithm.train() for _ in range(2)])
        return trial, Path(algorithm.save_to_path(folder / "checkpoint"))
    finally:
        algorithm.stop()


@pytest.fixture(scope="module")
def restored(checkpointed: tuple[TrialHere, Path], tmp_path_factory: pytest.TempPathFactory) -> Restored:
    from rapo_rllib import RAPO

    algorithm = RAPO.from_checkpoint(str(checkpointed[1]))
    try:
        iteration, version, state = algorithm.iteration, algorithm.env_runner.policy_version, algorithm.get_state()
        result = algorithm.train()
        after = algorithm.env_runner.policy_version
        policy = algorithm.export_policy(tmp_path_factory.mktemp("exported") / "policy")
        weights = {name: value.clone() for name, value in algorithm.get_module().language_model.state_dict().items()}
        algorithm.set_state(state)
        versions = version, after, algorithm.env_runner.policy_version
        return Restored(iteration, versions, result, Trial(Path(algorithm.logdir)), policy, weights)
    finally:
        algorithm.stop()


def test_a_restored_run_goes_on(checkpointed: tuple[TrialHere, Path], restored: Restored) -> None:
    before, result = checkpointed[0], restored.result
    assert restored.iteration == 2 and result["training_iteration"] == 3
    trained = at(result, "sync/weight_version")
    assert restored.versions == (trained - 1, trained, trained - 1)
    last = before.results[-1]
    assert at(result, "env_runners/num_env_steps_sampled_lifetime") > at(last, "env_runners/num_env_steps_sampled_lifetime")
    assert at(result, "rapo/accuracy_before") == at(last, "rapo/accuracy_before")  # of the whole training
    assert at(result, "rapo/retrievals") >= at(last, "rapo/retrievals") > 0
    seen = {t["question_id"] for t in before.transcripts}
    questions = {t["question_id"] for t in restored.trial.transcripts}
    assert len(questions) == 2
    assert not questions & seen, "the restored run asked questions again that this epoch had already"


def test_the_checkpoint_is_evaluated_as_its_run_was_set(
    checkpointed: tuple[TrialHere, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = str(checkpointed[1])
    run_here(monkeypatch, "evaluate", checkpoint, "--benchmarks", f"gsm8k={write_sums(tmp_path, 2)}")
    results = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    ((label, numbers),) = results["benchmarks"]["gsm8k"]["models"].items()
    assert label.endswith(Path(checkpoint).name)
    assert (numbers["questions"], numbers["failed"], numbers["temperature"]) == (2, 0, 0.0)
    assert 0 < numbers["tokens"] <= 128  # max_response_tokens
    found = results["settings"][label]
    assert found == json.loads((tmp_path / "evaluation" / "settings.json").read_text())["models"][label]
    budgets = {"max_prompt_tokens": 384, "max_response_tokens": 128, "max_step_tokens": 32, "max_tool_calls": 2}
    assert {name: found[name] for name in budgets} == budgets
    own = PROMPTED["protocol"]
    assert found["protocol"]["system_prompt"] == own["system_prompt"]
    assert found["protocol"]["examples"] == [list(pair) for pair in own["examples"]]
    assert found["env_config"]["reward"] == {"correct": 1.0, "format": 0.5}
    assert (found["engine"]["dtype"], found["tools"]) == ("float32", {"gsm8k": ["python"]})


def test_the_exported_policy_in_transformers_and_vllm(restored: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(restored.policy)
    model = AutoModelForCausalLM.from_pretrained(restored.policy, dtype=torch.float32)
    assert all(torch.equal(value, restored.weights[name]) for name, value in model.state_dict().items())
    ids = tokenizer("3", return_tensors="pt").input_ids
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()
    assert len(set(expected)) > 4
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    engine = LLM(str(restored.policy), dtype="float32", max_model_len=64, enforce_eager=True)
    (output,) = engine.generate("3", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    engine.llm_engine.engine_core.shutdown()
    assert list(output.outputs[0].token_ids) == expected

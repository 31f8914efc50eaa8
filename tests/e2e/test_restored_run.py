"""ARPO with retrieval and a warm start, shortened: branches that reach the learner, a run that goes on from its checkpoint.

The checkpoint is evaluated, too, and its policy read as other libraries do.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import run_here
from jobs import PROMPTED, Trial, TrialHere, at, built_here, short_job
from safetensors.torch import load_file
from sums import write_sums

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Checkpointed:
    """What was seen of a run of two iterations."""

    trial: TrialHere
    checkpoint: Path
    warm_started: Path  # folder of the model that it began with
    begun: dict[str, torch.Tensor]  # the policy's weights before the first iteration
    weights: dict[str, torch.Tensor]  # and after the second


@dataclass(frozen=True)
class Restored:
    """What was seen of a run that trained one more iteration."""

    iteration: int  # before it
    begun: dict[str, torch.Tensor]  # the policy's weights before it
    cached: bool  # the warm start was there
    versions: tuple[int, int, int]  # of the weights in the engine: before, after, and with the state before set again
    result: dict[str, Any]
    trial: Trial
    policy: Path  # exported
    weights: dict[str, torch.Tensor]


def policy_weights(algorithm: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in algorithm.get_module().language_model.state_dict().items()}


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(others[name], value) for name, value in some.items())


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory, speaking_model: str, ray_session: None) -> Checkpointed:
    """The job of ARPO with a small model, its buffer and a warm start, and its checkpoint."""
    folder = tmp_path_factory.mktemp("checkpointed")
    changes: dict[str, Any] = {"branching": {"initial": 6, "base_prob": 1.0}, "branch_advantage": "hard"}
    changes |= {"group_size": 8, "num_hybrid": 8, "model": {"name_or_path": speaking_model}}
    warm = {"num_trajectories": 8, "batch_size": 8, "lr": 1e-3, "folder": str(folder / "kept")}
    algorithm = built_here(short_job(folder, "arpo_math.yaml", **changes, warm_start=warm))
    try:
        begun, warm_started = policy_weights(algorithm), Path(algorithm.config.settings.model.name_or_path)
        trial = TrialHere(Path(algorithm.logdir), [algorithm.train() for _ in range(2)])
        checkpoint = Path(algorithm.save_to_path(folder / "checkpoint"))
        return Checkpointed(trial, checkpoint, warm_started, begun, policy_weights(algorithm))
    finally:
        algorithm.stop()


@pytest.fixture(scope="module")
def restored(checkpointed: Checkpointed, tmp_path_factory: pytest.TempPathFactory) -> Restored:
    from rapo_rllib import RAPO

    algorithm = RAPO.from_checkpoint(str(checkpointed.checkpoint))
    try:
        iteration, begun, cached = algorithm.iteration, policy_weights(algorithm), algorithm._warm_start.cached
        version, state = algorithm.env_runner.policy_version, algorithm.get_state()
        result = algorithm.train()
        after = algorithm.env_runner.policy_version
        policy = algorithm.export_policy(tmp_path_factory.mktemp("exported") / "policy")
        weights = policy_weights(algorithm)
        algorithm.set_state(state)
        versions = version, after, algorithm.env_runner.policy_version
        trial = Trial(Path(algorithm.logdir))
        return Restored(iteration, begun, cached, versions, result, trial, policy, weights)
    finally:
        algorithm.stop()


def test_engine_and_learner_begin_with_the_warm_started_model(checkpointed: Checkpointed, speaking_model: str) -> None:
    folder = checkpointed.warm_started
    assert folder.parent == checkpointed.checkpoint.parent / "kept"
    kept = load_file(folder / "model.safetensors")
    assert same(kept, checkpointed.begun) and not same(kept, load_file(Path(speaking_model) / "model.safetensors"))
    started = checkpointed.trial.results[0]["warm_start"]
    assert started["num_trajectories"] == 8 and not started["cached"]


def test_so_does_the_run_that_goes_on(checkpointed: Checkpointed, restored: Restored) -> None:
    assert restored.cached and same(restored.begun, checkpointed.weights)


def test_branches_share_what_came_before_them(checkpointed: Checkpointed) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for transcript in checkpointed.trial.transcripts[:16]:  # of the first iteration
        groups.setdefault(transcript["question_id"], []).append(transcript)
    assert [len(group) for group in groups.values()] == [8] * 2
    branches = [(t, group) for group in groups.values() for t in group if len(t["segments"]) > 1]
    assert branches
    for branch, group in branches:
        start = branch["segments"][-1][0]
        origin = group[branch["segments"][-2][1]]
        assert branch["token_ids"][:start] == origin["token_ids"][:start]
        assert branch["kinds"][start - 1] != 0 and branch["kinds"][start] == 0  # right after a tool result or a step trace


def test_metrics_count_every_event_once(checkpointed: Checkpointed) -> None:
    result, transcripts = checkpointed.trial.results[0], checkpointed.trial.transcripts[:16]
    forks = sum(len(t["segments"]) > 1 for t in transcripts)
    assert at(result, "env_runners/branching/forks") == forks > 0
    assert at(result, "env_runners/branching/forks") + at(result, "env_runners/branching/refilled") <= 4
    assert at(result, "env_runners/tokens/response") == sum(len(t["token_ids"]) for t in transcripts)
    by_source = [at(result, f"env_runners/tokens/{source}") for source in ("policy", "observation", "retrieved")]
    assert sum(by_source) == at(result, "env_runners/tokens/response") and min(by_source) > 0
    assert at(result, "env_runners/tokens/generated") < at(result, "env_runners/tokens/policy")
    assert 0 < at(result, "env_runners/prefix_cache_share") < 1
    assert at(result, "env_runners/retrieval/count") > 0


def test_the_learner_takes_a_finite_step(checkpointed: Checkpointed) -> None:
    learner = at(checkpointed.trial.results[0], "learners/default_policy")
    assert learner["num_steps"] == 1 and learner["num_skipped_steps"] == 0
    assert math.isfinite(learner["total_loss"]) and learner["gradient_norm"] > 0


def test_a_restored_run_goes_on(checkpointed: Checkpointed, restored: Restored) -> None:
    before, result = checkpointed.trial, restored.result
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
    checkpointed: Checkpointed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = str(checkpointed.checkpoint)
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
    own_reward = {"correct": 1.0, "format": 0.5, "all_tools": 0.1, "bad_format": -1.0, "strict_format": True}
    assert found["env_config"]["reward"] == own_reward
    assert (found["engine"]["dtype"], found["tools"]) == ("float32", {"gsm8k": ["python"]})


def test_the_exported_policy_in_transformers_and_vllm(restored: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from vllm import LLM, SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(restored.policy)
    model = AutoModelForCausalLM.from_pretrained(restored.policy, dtype=torch.float32)
    assert same(model.state_dict(), restored.weights)
    ids = tokenizer("3", return_tensors="pt").input_ids
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()
    assert len(set(expected)) > 4
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    engine = LLM(str(restored.policy), dtype="float32", max_model_len=64, enforce_eager=True)
    (output,) = engine.generate("3", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    engine.llm_engine.engine_core.shutdown()
    assert list(output.outputs[0].token_ids) == expected

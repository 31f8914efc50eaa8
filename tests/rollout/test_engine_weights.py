"""New weights in a real engine: each missed update is seen by the canary, and no old prefix survives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rapo_rllib.errors import EngineError, WeightSyncError
from rapo_rllib.learner.rl_module import _sequence_logprobs
from rapo_rllib.rollout.engine import GenerationRequest
from rapo_rllib.rollout.vllm import worker as vllm_worker
from rapo_rllib.settings import EngineSettings
from rapo_rllib.weights.canary import Canary, CanaryResult, canary_sequences

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def engine(small_model: str) -> Iterator[Any]:
    from rapo_rllib.rollout.vllm.engine import VLLMEngine

    settings = EngineSettings(dtype="float32", max_num_seqs=4, enforce_eager=True, kv_cache_gib=0.1)
    engine = VLLMEngine(small_model, settings, max_model_len=128)
    yield engine
    engine.close()


class TinyRun:
    """A learner's model and optimiser, an engine, and the canary between them."""

    def __init__(self, folder: str, engine: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.engine, self.version = engine, engine.policy_version
        self.canary = Canary(canary_sequences(AutoTokenizer.from_pretrained(folder)), exact=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        self.sync()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach() for name, weight in self.model.named_parameters()}  # the tied head comes once

    def step(self) -> None:
        """A real step of the optimiser, at its learning rate."""
        ids = torch.randint(0, 1000, (2, 24), generator=torch.Generator().manual_seed(self.version))
        self.optimizer.zero_grad()
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()

    def sync(self) -> CanaryResult:
        self.version += 1
        self.engine.weights.load(self.weights(), self.version)
        return self.compared()

    def compared(self) -> CanaryResult:
        with torch.no_grad():
            expected = [_sequence_logprobs(self.model, sequence) for sequence in self.canary.sequences]
        return self.canary.check("engine", expected, self.engine.score(self.canary.sequences))


@pytest.fixture
def run(engine: Any, small_model: str) -> TinyRun:
    return TinyRun(small_model, engine)


def test_steps_at_1e6_are_confirmed_one_after_the_other(run: TinyRun) -> None:
    for _ in range(3):
        run.step()
        result = run.sync()
        assert result.mean < 1e-4
        assert result.conclusive and result.engine_missed < 0.2 * result.learner_moved


def test_the_canary_sees_a_step_at_1e6_that_did_not_arrive(run: TinyRun) -> None:
    run.step()
    with pytest.raises(WeightSyncError, match=r"learner moved by .* stale or partial"):
        run.compared()
    assert run.sync().conclusive


def test_an_lm_head_that_stays_behind_is_heard_by_the_canary(run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM packs a tied head's copy of the embedding only if the stream names it; the head is 2 % of the move."""
    monkeypatch.setattr(vllm_worker, "_repack_tied_head", lambda model: None)
    for group in run.optimizer.param_groups:
        group["lr"] = 1e-4
    run.step()
    with pytest.raises(WeightSyncError, match=r"learner moved by .* stale or partial"):
        run.sync()
    monkeypatch.undo()
    assert run.sync().mean < 1e-4


def test_an_engine_without_whole_weights_computes_nothing(run: TinyRun) -> None:
    with pytest.raises(AttributeError):
        run.engine.weights.load({"model.norm.weight": None}, run.version + 1)
    for use in (lambda: run.engine.score([[1, 2]]), lambda: run.engine.submit(GenerationRequest("r", [1, 2], max_tokens=1))):
        with pytest.raises(EngineError, match=r"has not finished loading weight version .*; it computes nothing"):
            use()
    assert run.sync().mean < 1e-4


PROMPT = list(range(100, 180))


def generated(engine: Any, **options: Any) -> Any:
    engine.submit(GenerationRequest("prefix", PROMPT, **{"max_tokens": 2, **options}))
    while engine.num_unfinished:
        done = engine.poll()
    return done[0]


def test_no_cached_prefix_outlives_its_weights(run: TinyRun) -> None:
    engine = run.engine
    assert generated(engine).cached_tokens == 0 < generated(engine).cached_tokens
    run.step()
    assert run.sync().mean < 1e-4
    completion = generated(engine)
    assert (completion.cached_tokens, completion.policy_version) == (0, run.version)


def test_a_prefix_cache_that_cannot_be_cleared_is_an_error(run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, version = run.engine, run.version
    monkeypatch.setattr(engine._engine, "reset_prefix_cache", lambda reset_running_requests: False)
    with pytest.raises(WeightSyncError, match=r"version \d+: the prefix cache could not be cleared"):
        run.sync()
    assert engine.policy_version == version
    with pytest.raises(EngineError, match="it computes nothing"):
        engine.submit(GenerationRequest("r", PROMPT, max_tokens=1))
    monkeypatch.undo()
    assert run.sync().mean < 1e-4

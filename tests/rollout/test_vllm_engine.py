"""vLLM's numbers against a Hugging Face forward pass over the same tokens, and its weights against those it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.settings import EngineSettings

PROMPTS = ("Tom has 3 apples and buys 5 more. How many", "def fibonacci(n):\n", "<python>3 + 5</python>\n<result>")


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Iterator[Any]:
    from rapo_rllib.rollout.vllm_engine import VLLMEngine

    settings = EngineSettings(dtype="float32", max_num_seqs=8, enforce_eager=True)
    engine = VLLMEngine(str(smollm2), settings, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


def generate(engine: Any, prompts: list[list[int]], **options: Any) -> list[Completion]:
    """Continue every prompt; completions in the order of the prompts."""
    for index, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(f"test-{index}", prompt, **{"max_tokens": 20, **options}))
    done: dict[str, Completion] = {}
    while engine.num_unfinished:
        done |= {completion.request_id: completion for completion in engine.poll()}
    return [done[f"test-{index}"] for index in range(len(prompts))]


@torch.no_grad()
def scored(model: Any, prompt: list[int], response: list[int], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies ``[N]`` of the response under ``softmax(logits / temperature)``."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double() / temperature
    log_p = torch.log_softmax(logits, -1)
    return log_p.gather(-1, torch.tensor(response)[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.4])
def test_logprobs_and_entropies_equal_a_forward_pass(engine: Any, model: Any, tokenizer: Any, temperature: float) -> None:
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    for prompt, completion in zip(prompts, generate(engine, prompts, temperature=temperature), strict=True):
        logprobs, entropies = scored(model, prompt, list(completion.token_ids), temperature)
        assert len(completion.token_ids) > 0
        assert torch.tensor(completion.logprobs).double() == pytest.approx(logprobs, abs=2e-3)
        assert torch.tensor(completion.entropies).double() == pytest.approx(entropies, abs=2e-3)


def test_greedy_tokens_are_the_argmax(engine: Any, model: Any, tokenizer: Any) -> None:
    prompt = tokenizer.encode(PROMPTS[0])
    (completion,) = generate(engine, [prompt], temperature=0.0, record_entropy=False)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
    assert list(completion.token_ids) == expected.tolist()


def test_a_stop_string_is_kept_and_what_its_token_carries_beyond_is_told(engine: Any, tokenizer: Any) -> None:
    prompt = tokenizer.encode("Write: 1, 2, 3, 4, 5, 6,")
    (completion,) = generate(engine, [prompt], temperature=0.0, stop=("8",))
    assert completion.finish == "stop"
    assert completion.text.endswith("8")
    assert tokenizer.decode(completion.token_ids) == completion.text + completion.spill


def test_length_is_named(engine: Any, tokenizer: Any) -> None:
    (completion,) = generate(engine, [tokenizer.encode("Once upon a time")], max_tokens=3)
    assert completion.finish == "length"
    assert len(completion.token_ids) == 3


def test_scores_equal_a_forward_pass(engine: Any, model: Any, tokenizer: Any) -> None:
    sequences = [tokenizer.encode(prompt) for prompt in PROMPTS]
    for sequence, score in zip(sequences, engine.score(sequences), strict=True):
        expected, _ = scored(model, sequence[:1], sequence[1:], 1.0)
        assert score == pytest.approx(expected.tolist(), abs=2e-3)


def test_an_incomplete_set_of_weights_is_refused(engine: Any, model: Any) -> None:
    weights = {name: value for name, value in model.state_dict().items() if "layers.7." not in name}
    with pytest.raises(WeightSyncError, match=r"parameters of the engine received nothing"):
        engine.load_weights(weights, version=1)
    engine.load_weights(model.state_dict(), version=2)
    assert engine.policy_version == 2

"""Random language models of a few thousand weights, and sample groups for them: what learner tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from rapo_rllib.batching.samples import Sample, SampleGroup

VOCABULARY = 61


def tiny_model(kind: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.nn.Module:
    """A random Llama, Qwen2, Gemma or Gemma2 (sliding window of 4, soft cap) with two layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,  # large enough that attention matters
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "tie_word_embeddings": kind != "qwen2",
    }
    if kind == "gemma2":
        sizes |= {"sliding_window": 4, "query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.to(dtype)


def save_tiny_model(folder: Path, kind: str = "llama") -> Path:
    """A tiny model and a byte-level tokenizer, as a Hugging Face folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny_model(kind, torch.float32).save_pretrained(folder)
    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t2", unk_token="t0").save_pretrained(folder)
    return folder


def sample(token_ids: Sequence[int], loss_mask: Sequence[int], advantage: float = 1.0, weight: float = 1.0) -> Sample:
    """A sample whose rollout logprobs are -1 for its first token, -2 for its second, and so on."""
    return Sample(
        token_ids=np.array(token_ids, dtype=np.int32),
        loss_mask=np.array(loss_mask, dtype=bool),
        rollout_logprobs=-np.arange(1, len(token_ids) + 1, dtype=np.float32) * np.array(loss_mask, dtype=np.float32),
        advantage=advantage,
        retrieved_share=0.0,
        weight=weight,
    )


def random_groups(lengths: Sequence[tuple[int, Sequence[int]]], seed: int = 0) -> list[SampleGroup]:
    """Groups of random tokens: ``[(prompt length, response lengths), ...]``; about a third are no policy tokens."""
    generator = np.random.default_rng(seed)
    groups = []
    for prompt, responses in lengths:
        samples = []
        for length in responses:
            mask = generator.random(length) < 0.7
            mask[0] = True
            samples.append(sample(generator.integers(3, VOCABULARY, length), mask, float(generator.normal()), 1.0 / length))
        groups.append(SampleGroup(generator.integers(3, VOCABULARY, prompt).astype(np.int32), tuple(samples)))
    return groups

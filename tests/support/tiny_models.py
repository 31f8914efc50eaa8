"""Random language models of a few thousand weights, and sample groups for them: what learner tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rapo_rllib.batching.samples import Sample, SampleGroup

VOCABULARY = 61


def tiny_model(
    kind: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0, head_dim: int = 8, heads: int = 4
) -> torch.nn.Module:
    """A random language model with two layers; vLLM needs heads of 32.

    ``gemma2`` and ``gemma3_text`` have a layer with a sliding window of 4, ``mistral`` two; ``gemma2`` caps scores and logits.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 8 * heads,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,  # large enough that attention matters
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "tie_word_embeddings": kind != "qwen2",
    }
    sizes |= {
        "gemma2": {
            "sliding_window": 4,
            "query_pre_attn_scalar": 8,
            "final_logit_softcapping": 5.0,
            "attn_logit_softcapping": 2.0,
        },
        "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        "mistral": {"sliding_window": 4},
        "granite": {"logits_scaling": 3.0},
        "hyperclovax": {"logits_scaling": 3.0},
    }.get(kind, {})
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    return model.to(dtype)


def save_tiny_model(folder: Path, kind: str = "llama", head_dim: int = 8) -> Path:
    """A tiny model and a byte-level tokenizer, as a Hugging Face folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny_model(kind, torch.float32, head_dim=head_dim).save_pretrained(folder)
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
        advantages=np.full(len(token_ids), advantage, dtype=np.float32),
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
            made = sample(generator.integers(3, VOCABULARY, length), mask, 1.0, 1.0 / length)
            samples.append(replace(made, advantages=generator.normal(size=length).astype(np.float32)))
        groups.append(SampleGroup(generator.integers(3, VOCABULARY, prompt).astype(np.int32), tuple(samples)))
    return groups


def branched_group(prompt: Sequence[int], paths: Sequence[Sequence[tuple[str, int]]], seed: int = 0) -> SampleGroup:
    """A group of branches: pieces ``(name, length)`` of the same name hold the same tokens.

    Every token of a trajectory has an advantage of its own, also where others share the token, and about a third are no policy
    tokens. The first and last always are.
    """
    generator = np.random.default_rng(seed)
    pieces: dict[str, np.ndarray] = {}
    samples = []
    for path in paths:
        for name, length in path:
            pieces.setdefault(name, generator.integers(3, VOCABULARY, length))
        tokens = np.concatenate([np.zeros(0, dtype=int), *(pieces[name] for name, _ in path)])
        mask = generator.random(len(tokens)) < 0.7
        mask[:1] = mask[-1:] = True
        made = replace(sample(tokens, mask), advantages=generator.normal(size=len(tokens)).astype(np.float32))
        samples.append(made)
    return SampleGroup(np.array(prompt, dtype=np.int32), tuple(samples))

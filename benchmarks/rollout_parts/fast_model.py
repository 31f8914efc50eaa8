"""A language model that generates on two CPU cores about as fast as a large one on a GPU: two small random layers.

What it writes is noise. It is for schedules, whose gain depends on how long generation takes beside the tools: a model of 7
billion parameters on one GPU takes some tens of milliseconds for a token of each of 32 trajectories, and so does this one here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rapo_rllib.models.loading import resolve_model
from rollout_parts.bench import Bench


def fast_bench(bench: Bench, folder: Path) -> Bench:
    """Make the bench with a fast model and the same tokenizer; its files go into ``folder``. Closed with ``bench``."""
    target = save_fast_model(bench.options.model, folder / "fast_model", bench.options.seed)
    bench.others.append(Bench(replace(bench.options, model=str(target))))
    return bench.others[-1]


def save_fast_model(model: str, target: Path, seed: int) -> Path:
    """Write such a model with the tokenizer of ``model``; returns its folder."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(model))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target

"""Measures how time and memory of a pass grow with response tokens, ``G`` and vocabulary.

A small random Llama, so that every point takes a second or two: ours, and what a textbook does (every prompt + response in a
padded batch, logits of all tokens). Parameters, gradients and what was there before are subtracted from the memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from learner_parts.side import Options, peak_bytes, reset_peak, resident_bytes

PROMPT = 200


@dataclass(frozen=True)
class Point:
    """One size: ``G`` responses of so many tokens to a prompt of ``PROMPT``, and a vocabulary."""

    response: int = 100
    group_size: int = 8
    vocabulary: int = 8000


AXES = {
    "response": (50, 100, 200, 400),
    "group_size": (2, 4, 8, 16, 32),
    "vocabulary": (2000, 8000, 32000, 64000),
}


def scaling(options: Options, short: bool) -> list[dict[str, Any]]:
    """A row per size and way: axis, size, way, seconds, bytes. Each in a process of its own, so that none inherits a heap."""
    rows = []
    for axis, values in AXES.items():
        for value in values[:2] if short else values:
            for way in ("ours", "textbook"):
                with get_context("spawn").Pool(1) as pool:
                    seconds, peak = pool.apply(_measure, (way, Point(**{axis: value}), options.threads))
                rows.append({"axis": axis, "value": value, "way": way, "seconds": seconds, "bytes": peak})
    return rows


def _measure(way: str, point: Point, threads: int) -> tuple[float, int]:
    """Seconds (the best of three) and bytes (the most of three) of one pass."""
    import torch

    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    passes = (_ours if way == "ours" else _textbook)(_model(point).to(device), point)
    next(passes)  # warm, and every parameter has its gradient
    before, seconds, peak = resident_bytes(), [], 0
    for _ in range(3):
        reset_peak()
        started = time.perf_counter()
        next(passes)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        peak = max(peak, peak_bytes())
    return min(seconds), peak - before


def _model(point: Point) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=point.vocabulary, tie_word_embeddings=True)
    return AutoModelForCausalLM.from_config(config)


def _ours(model: Any, point: Point) -> Iterator[None]:
    from rapo_rllib.attention.probe import row_attention
    from rapo_rllib.batching.packing import pack_rows
    from rapo_rllib.batching.samples import Sample, SampleGroup
    from rapo_rllib.learner.rl_module import score_row
    from rapo_rllib.settings import ModelSettings

    prompt, responses = _tokens(point)
    ones = np.ones(point.response, dtype=np.float32)
    samples = tuple(Sample(tokens, ones.astype(bool), -ones, ones, 0.0, 1.0) for tokens in responses)
    attention, settings = row_attention(model), ModelSettings(autocast_dtype=None, logits_chunk_size=256)
    device = next(model.parameters()).device
    while True:
        for row in pack_rows([SampleGroup(prompt, samples)], 8192):
            logprobs, _ = score_row(model, row.to(device), settings, 1.0, attention)
            logprobs.mean().backward()
        yield


def _textbook(model: Any, point: Point) -> Iterator[None]:
    import torch

    prompt, responses = _tokens(point)
    device = next(model.parameters()).device
    ids = torch.from_numpy(np.concatenate([np.tile(prompt, (point.group_size, 1)), responses], axis=1)).to(device)
    while True:
        logits = model(input_ids=ids, use_cache=False).logits[:, PROMPT - 1 : -1]
        log_p = torch.log_softmax(logits, -1)
        with torch.no_grad():
            _ = -(log_p.exp() * log_p).sum(-1)
        log_p.gather(-1, ids[:, PROMPT:, None]).mean().backward()
        yield


def _tokens(point: Point) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    prompt = generator.integers(0, point.vocabulary, PROMPT)
    return prompt, generator.integers(0, point.vocabulary, (point.group_size, point.response))


def describe(point: Point) -> str:
    """The sizes that stand still while another one grows."""
    return f"prompt {PROMPT}, " + ", ".join(f"{name} {value}" for name, value in asdict(point).items())

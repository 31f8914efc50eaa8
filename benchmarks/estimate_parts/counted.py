"""Counts the bytes of a learner's step of a job, tensor by tensor, beside the estimate of the same lines.

    job.yaml, config.json --model, optimiser, row, on tensors without data--> live bytes at the peak, by line

The tensors have shapes and lifetimes, but no data: ``FakeTensorMode``. What runs on them is the learner's own, as on a GPU: its
row, forward pass, chunks of logits, loss, hooks, optimiser. Only the kernel of FlexAttention, which would be compiled, is a
stand-in that keeps and allocates what the kernel does. Layers are not compiled, where a job says so: fused they keep less.

A job that shards (``fsdp``) is counted whole, on one learner; its states are then divided by the learners. What FSDP gathers is
added up over the model's own units: weights of the root and of two layers, gradients of one layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import finalize

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.integrations import flex_attention

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching import chunked_logprobs
from rapo_rllib.batching.packing import PackedRow, pack_rows
from rapo_rllib.batching.samples import Sample, SampleGroup
from rapo_rllib.estimate.memory import Row, row_of
from rapo_rllib.learner.learner import METRICS, RAPOTorchLearner
from rapo_rllib.learner.master_weights import MasterWeightAdamW
from rapo_rllib.learner.metrics import UpdateMetrics
from rapo_rllib.learner.rl_module import ENTROPIES, LOGPROBS, ROW, score_row
from rapo_rllib.models.activation_checkpointing import decoder_layers, enable_checkpointing
from rapo_rllib.settings import Settings

WEIGHTS, MASTERS, MOMENTS, GRADIENTS = "weights", "master weights", "Adam's moments", "gradients"
ACTIVATIONS, PASSING, GATHERED = "activations", "logits, gradients on their way", "gathered weights"
LINES = (WEIGHTS, MASTERS, MOMENTS, GRADIENTS, GATHERED, ACTIVATIONS, PASSING)
STEP = "the optimiser's own"  # of a step that follows a pass: less than that pass, or it would be the peak


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations made and that still live, by the line that was current when they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.line = WEIGHTS
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._lines: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and id(storage := tensor.untyped_storage()) not in self._lines:
                self._lines[id(storage)] = self.line
                self.now[self.line] += storage.nbytes()
                finalize(storage, self._free, id(storage), storage.nbytes())
        if self.now.total() > self.peak.total():
            self.peak = self.now.copy()
        return found

    def rename(self, lines: tuple[str, ...], name: str) -> None:
        """Say what is left of some lines is ``name``, and forget the peak."""
        self._lines = {key: name if line in lines else line for key, line in self._lines.items()}
        self.now[name] += sum(self.now.pop(line, 0) for line in lines if line != name)
        self.peak = self.now.copy()

    def _free(self, key: int, num_bytes: int) -> None:
        self.now[self._lines.pop(key)] -= num_bytes


class _Flex(torch.autograd.Function):
    """FlexAttention by what it keeps: its arguments, its result, a float32 log-sum of each query, its gradients."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, sums = torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.mark_non_differentiable(sums)
        return output, sums

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, _, sums = ctx.saved_tensors
        _ = torch.empty_like(sums)  # sums of gradient times result
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
    output: torch.Tensor = _Flex.apply(query, key, value)[0]
    return output


@contextmanager
def _without_data() -> Iterator[None]:
    """Tensors without data on the CPU, for a build without CUDA knows no others, in the portions of a GPU."""
    with (
        patch.object(flex_attention, "compile_friendly_flex_attention", _flex),
        patch.object(chunked_logprobs, "ELEMENTS_AT_ONCE_CPU", chunked_logprobs.ELEMENTS_AT_ONCE),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


def full_row(row: Row, settings: Settings, vocabulary: int) -> PackedRow:
    """Groups of prompts with responses of the longest kind until the row is full; the last response is what room is left."""
    numbers, groups, left = np.random.default_rng(0), [], row.tokens
    prompt, response = settings.rollout.max_prompt_tokens, settings.rollout.max_response_tokens

    def sample(count: int) -> Sample:
        zeros = np.zeros(count, np.float32)
        return Sample(numbers.integers(0, vocabulary, count), np.ones(count, bool), zeros, zeros, 0.0, 1.0)

    while left > prompt:
        left -= prompt
        samples = []
        while left > 0 and len(samples) < settings.rollout.group_size:
            samples.append(sample(min(response, left)))
            left -= len(samples[-1].token_ids)
        groups.append(SampleGroup(numbers.integers(0, vocabulary, prompt), tuple(samples)))
    (packed,) = pack_rows(groups, row.tokens)
    return packed


def counted(config: PretrainedConfig, settings: Settings) -> dict[str, int]:
    """Live bytes at the peak of the second micro batch of an optimiser step, by line, and those of the step behind it."""
    row = full_row(row_of(settings), settings, config.vocab_size)
    with _without_data(), LiveBytes() as live:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, settings.model.dtype)).train()
        model.config.use_cache = False
        use_attention(model, RowAttention.FLEX)
        enable_checkpointing(model, settings.model.gradient_checkpointing)
        live.line = MASTERS
        weights = list(model.parameters())
        rounded = settings.model.dtype == "bfloat16" and settings.model.master_weights is not None
        optimizer = (MasterWeightAdamW if rounded else torch.optim.AdamW)(weights, fused=True)
        _pass(model, row, settings, live)
        live.rename((ACTIVATIONS, PASSING), GRADIENTS)
        live.line = MOMENTS
        optimizer.step()
        live.rename((), MOMENTS)
        _pass(model, row, settings, live)
        found = live.peak
        live.rename((ACTIVATIONS, PASSING), GRADIENTS)
        live.line = STEP
        _step(optimizer, settings)
        sizes = {line: found[line] for line in LINES if found[line]} | {STEP: live.peak[STEP]}
    return _on_one_rank(sizes, model, settings)


def _pass(model: Any, row: PackedRow, settings: Settings, live: LiveBytes) -> None:
    """Forward and backward pass of a micro batch, as ``RAPOTorchLearner`` has it."""

    def behind_layers(*_: Any) -> None:
        live.line = PASSING

    live.line = ACTIVATIONS
    handle = decoder_layers(model)[-1].register_forward_hook(behind_layers)
    logprobs, entropies = score_row(model, row, settings.model, settings.rollout.temperature, RowAttention.FLEX)
    handle.remove()
    loss = RAPOTorchLearner.compute_loss_for_module(
        SimpleNamespace(settings=settings),  # all that it reads of a learner
        module_id="",
        config=None,
        batch={ROW: replace(row), METRICS: UpdateMetrics()},
        fwd_out={LOGPROBS: logprobs, ENTROPIES: entropies},
    )
    loss.backward()


def _step(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    """Norm of the gradient, its limit, and the step, as ``RAPOTorchLearner`` has them."""
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in trained])
    if settings.rllib.grad_clip is not None:
        torch.nn.utils.clip_grads_with_norm_(trained, settings.rllib.grad_clip, norm)
    optimizer.step()


def _on_one_rank(sizes: dict[str, int], model: Any, settings: Settings) -> dict[str, int]:
    """Shards of the states, of which the float32 weights are the masters, and what is whole in a pass."""
    ranks = settings.rllib.num_learners
    if settings.update.learner_parallelism != "fsdp" or ranks < 2:
        return sizes
    width = getattr(torch, settings.model.dtype).itemsize
    trained = sizes.pop(MASTERS, sizes[WEIGHTS])
    layer = sum(parameter.numel() for parameter in decoder_layers(model)[0].parameters())
    gradient = width if settings.model.master_weights is None else torch.float32.itemsize
    root = model.num_parameters() - len(decoder_layers(model)) * layer
    divided = {line: -(-size // ranks) for line, size in {**sizes, WEIGHTS: trained}.items() if line in (*LINES[:4], STEP)}
    return {**sizes, **divided, GATHERED: root * width + layer * (2 * width + gradient)}

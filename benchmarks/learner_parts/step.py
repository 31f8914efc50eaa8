"""A learner's pass without RLlib: packed rows through a model, the package's loss, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpu_parts.machine import Shape
from gpu_parts.models import model_of

from learner_parts.side import Options
from learner_parts.tree_shapes import TreeShape
from rapo_rllib.attention.forward import RowAttention, hidden_states
from rapo_rllib.attention.probe import row_attention
from rapo_rllib.batching.chunked_logprobs import logprobs_and_entropies
from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.batching.samples import Sample, SampleGroup
from rapo_rllib.models.activation_checkpointing import enable_checkpointing
from rapo_rllib.models.loading import load_causal_lm
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import policy_loss
from rapo_rllib.settings import ModelSettings, ObjectiveSettings

OBJECTIVE = ObjectiveSettings(importance_cap=None)


@dataclass
class Trained:
    """A model and the way of packed rows through it."""

    model: Any
    attention: RowAttention
    shape: Shape

    @classmethod
    def load(cls, options: Options, tiny: bool) -> Trained:
        """The model of the options in training; ``tiny``: a random one of a few thousand weights, for tests."""
        torch.set_num_threads(options.threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if tiny:
            model = model_of("tiny", getattr(torch, options.dtype), device)
        else:
            model = load_causal_lm(ModelSettings(name_or_path=options.model, dtype=options.dtype)).to(device).train()
        attention = row_attention(model)
        enable_checkpointing(model, options.gradient_checkpointing)
        return cls(model, attention, _shape(model.config))

    @property
    def device(self) -> str:
        """Where the model is: ``cpu`` or ``cuda``."""
        return next(self.model.parameters()).device.type

    def gradients(
        self, rows: Iterable[PackedRow], attention: RowAttention, score: Callable[..., Any] = logprobs_and_entropies
    ) -> None:
        """Add the gradients of the rows to those of the weights; ``score``: what makes logprobs of hidden states."""
        for row in (row.to(self.device) for row in rows):
            states = hidden_states(self.model, row, attention)[row.scored_positions]
            logprobs, _ = score(states, row.scored_ids, self.model.get_output_embeddings())
            _loss(row, logprobs[row.loss_index]).backward()


def _loss(row: PackedRow, logprobs: torch.Tensor) -> torch.Tensor:
    """The package's objective, on the first step of a batch."""
    names = ("advantages", "retrieved_share", "weights", "rollout_logprobs", "trajectory_ids", "off_policy")
    own = {name: getattr(row, name) for name in names}
    inputs = LossInputs(logprobs=logprobs, old_logprobs=logprobs.detach(), reference_logprobs=None, **own)
    return policy_loss(inputs, OBJECTIVE).loss


def _shape(config: Any) -> Shape:
    sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads)
    return Shape(*sizes, config.num_key_value_heads, config.vocab_size, config.tie_word_embeddings)


def tree_group(shape: TreeShape, vocabulary: int) -> SampleGroup:
    """Random tokens in that shape, all of the responses trained, an advantage for each trajectory."""
    numbers = np.random.default_rng(0)
    paths = [np.zeros(0, np.int64)]
    for branches, tokens in shape.levels:
        grown = []
        for path in paths:
            pieces = numbers.integers(0, vocabulary, (branches, tokens))
            pieces[:, 0] = numbers.choice(vocabulary, branches, replace=False)  # siblings share nothing
            grown += [np.concatenate([path, piece]) for piece in pieces]
        paths = grown
    zeros, ones = np.zeros(len(paths[0]), np.float32), np.ones(len(paths[0]), np.float32)
    weight = 1.0 / (len(paths) * len(zeros))
    samples = [Sample(path, ones.astype(bool), zeros, ones * numbers.normal(), 0.0, weight) for path in paths]
    return SampleGroup(numbers.integers(0, vocabulary, shape.prompt), tuple(samples))

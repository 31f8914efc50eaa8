"""Find by trying which attention over packed rows a model computes rightly.

A list of model names would be wrong by the next release. So a small packed row of random tokens, with a fork in it, goes
through the model once in each way, and what comes out must be what the separate sequences give.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from rapo_rllib.attention.forward import RowAttention, hidden_states, use_attention
from rapo_rllib.batching.packing import PackedRow, pack_rows
from rapo_rllib.batching.samples import Sample, SampleGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

CANDIDATES = {
    "sdpa": (RowAttention.BLOCKS, RowAttention.MASK),
    "flex": (RowAttention.FLEX, RowAttention.MASK),
}
PROMPT, SHARED, OWN = 8, 4, 6  # tokens of the probe
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 0.05  # relative; a token that sees its sibling's changes by tens of per cent


def row_attention(language_model: PreTrainedModel, requested: str = "auto") -> RowAttention:
    """The fastest way to send packed rows through this model on its device, and the model switched to it.

    Args:
        language_model: on the device on which it will be used.
        requested: ``auto`` (flex on CUDA, otherwise sdpa), ``sdpa`` or ``flex``.

    Returns:
        The way found; ``UNSHARED``, with a warning, for a model that cannot attend along a tree.

    Raises:
        ValueError: an unknown ``requested``, or flex without CUDA.
    """
    device = next(language_model.parameters()).device
    if requested == "auto":
        requested = "flex" if device.type == "cuda" else "sdpa"
    if requested not in CANDIDATES:
        raise ValueError(f"model.attention must be one of ['auto', 'flex', 'sdpa'], got {requested!r}")
    if requested == "flex" and device.type != "cuda":
        raise ValueError(
            f"model.attention: 'flex' needs CUDA and the model is on {device.type!r}, where FlexAttention has no backward "
            "pass. Use 'auto' or 'sdpa'."
        )
    reasons = []
    with _probing(language_model):
        expected = _states_of_separate_sequences(language_model)
        for attention in CANDIDATES[requested]:
            reason = _reason_against(language_model, attention, expected)
            if reason is None:
                return attention
            reasons.append(f"{attention}: {reason}")
    logger.warning(
        "%s cannot attend along a prefix tree (%s), so trajectories are packed without sharing their prompts",
        type(language_model).__name__,
        "; ".join(reasons),
    )
    return RowAttention.UNSHARED


@contextmanager
def _probing(language_model: PreTrainedModel) -> Iterator[None]:
    """Without gradients and dropout."""
    training = language_model.training
    language_model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        language_model.train(training)


def _states_of_separate_sequences(language_model: PreTrainedModel) -> torch.Tensor:
    """By the model's plainest attention: of the others, some leave out what they have no kernel for, as a soft cap."""
    own = language_model.config._attn_implementation
    language_model.set_attn_implementation("eager")
    states = _loss_states(language_model, RowAttention.UNSHARED)
    language_model.set_attn_implementation(own)
    return states


def _reason_against(language_model: PreTrainedModel, attention: RowAttention, expected: torch.Tensor) -> str | None:
    """Why the model cannot be used in this way; None if it can, and the model is left switched to it."""
    own = language_model.config._attn_implementation
    try:
        use_attention(language_model, attention)
        states = _loss_states(language_model, attention)
    except Exception as error:  # whatever a model of any origin raises at arguments that it does not know
        language_model.set_attn_implementation(own)
        return f"{type(error).__name__}: {error}".splitlines()[0]
    wrong = float((states - expected).norm() / expected.norm())
    if wrong < (LOW_PRECISION_TOLERANCE if states.dtype.itemsize < 4 else TOLERANCE):
        return None
    language_model.set_attn_implementation(own)
    return f"hidden states differ by {wrong:.0%} from those of separate sequences"


def _loss_states(language_model: PreTrainedModel, attention: RowAttention) -> torch.Tensor:
    """Hidden states ``[N, D]`` that predict the probe's loss tokens, in an order that does not depend on ``attention``."""
    parameter = next(language_model.parameters())
    row = _probe(language_model.config.get_text_config().vocab_size, share=attention is not RowAttention.UNSHARED)
    row = row.to(parameter.device)
    return hidden_states(language_model, row, attention)[row.scored_positions[row.loss_index]]


def _probe(vocabulary: int, share: bool) -> PackedRow:
    """A prompt with three responses, of which two begin alike, and a second prompt with one."""
    generator = np.random.default_rng(0)

    def tokens(count: int) -> np.ndarray:
        return generator.integers(0, vocabulary, count).astype(np.int32)

    shared = tokens(SHARED)
    responses = [np.concatenate([shared, tokens(OWN)]), np.concatenate([shared, tokens(OWN)]), tokens(OWN)]
    groups = [SampleGroup(tokens(PROMPT), tuple(map(_sample, responses))), SampleGroup(tokens(PROMPT), (_sample(tokens(OWN)),))]
    (row,) = pack_rows(groups, max_tokens=1000, share=share)
    return row


def _sample(token_ids: np.ndarray) -> Sample:
    zeros = np.zeros(len(token_ids), dtype=np.float32)
    return Sample(token_ids, np.ones(len(token_ids), dtype=bool), zeros, zeros, 0.0, 1.0)

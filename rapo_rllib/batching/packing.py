"""Sample groups to packed rows: a prompt is computed once for all its responses.

    SampleGroup (x many) --pack_rows--> PackedRow (x few) --rl_module--> logprobs of the loss tokens

A row holds *segments*: a prompt, then responses that continue it, then perhaps another prompt with its responses. A token sees
its own segment up to itself, and the whole segment it continues; position ids restart after the prompt for every response. So
each prompt + response is computed as if it stood alone, and gradients equal those of the unshared computation.

Shapes: ``L`` tokens of a row, ``N`` loss tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rapo_rllib.batching.samples import Sample, SampleGroup

NO_PARENT = -1


@dataclass(frozen=True)
class PackedRow:
    """One forward pass without a batch dimension.

    Example: prompt ``[1, 2]``, responses ``[5, 6, 7]`` (6 is an observation) and ``[8, 9]``, all others trained::

        token_ids       1 2 5 6 8      the last token of a response predicts nothing, so it is a target only
        position_ids    0 1 2 3 2      both responses start right after the prompt
        segment_ids     0 0 1 1 2
        parent_ids     -1-1 0 0 0
        mask            1 . . . .
                        1 1 . . .      prompt: causal
                        1 1 1 . .
                        1 1 1 1 .      first response: prompt and itself
                        1 1 . . 1      second response: prompt and itself, not the first response
        target_ids      5 7 8 9        the loss tokens
        loss_positions  1 3 1 4        the hidden state that predicts each: the prompt's last one predicts both first tokens
    """

    token_ids: torch.Tensor  # [L] int64
    position_ids: torch.Tensor  # [L] int64
    segment_ids: torch.Tensor  # [L] int64, unique within the row
    parent_ids: torch.Tensor  # [L] int64, the segment that a token's segment continues; NO_PARENT for a prompt
    loss_positions: torch.Tensor  # [N] int64, index of the hidden state that predicts the loss token
    target_ids: torch.Tensor  # [N] int64, the loss token itself
    rollout_logprobs: torch.Tensor  # [N] float32, of the engine that sampled, nats
    advantages: torch.Tensor  # [N] float32
    retrieved_share: torch.Tensor  # [N] float32, F_ret of the token's trajectory
    weights: torch.Tensor  # [N] float32, share of the token in the mean over the batch
    trajectory_ids: torch.Tensor  # [N] int64, which response of the row a loss token belongs to

    @property
    def num_tokens(self) -> int:
        """``L``."""
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        """``N``."""
        return len(self.target_ids)

    def mask(self, window: int | None = None) -> torch.Tensor:
        """Who sees whom, ``[L, L]`` bool, True = row token sees column token. ``window``: of sliding-window layers."""
        index = torch.arange(self.num_tokens, device=self.token_ids.device)
        same_path = (self.segment_ids[:, None] == self.segment_ids) | (self.parent_ids[:, None] == self.segment_ids)
        visible = same_path & (index[:, None] >= index)
        if window is not None:
            visible &= self.position_ids[:, None] - self.position_ids < window
        return visible

    def to(self, device: torch.device | str) -> PackedRow:
        """The same row on another device."""
        return PackedRow(**{name: value.to(device) for name, value in vars(self).items()})


def pack_rows(groups: Iterable[SampleGroup], max_tokens: int) -> list[PackedRow]:
    """Pack groups into rows of at most ``max_tokens`` tokens; samples without loss tokens are left out.

    A group that does not fit is split over several rows, each with the prompt. A single prompt + response longer than the
    budget gets a row of its own: it is never cut. Small groups share a row. Deterministic.

    Raises:
        ValueError: ``max_tokens`` is not positive.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens_per_micro_batch must be positive, got {max_tokens}")
    rows: list[list[_Piece]] = []
    for piece in sorted((p for group in groups for p in _split_group(group, max_tokens)), key=lambda p: -p.num_tokens):
        row = next((r for r in rows if sum(p.num_tokens for p in r) + piece.num_tokens <= max_tokens), None)
        if row is None:
            rows.append([piece])
        else:
            row.append(piece)
    return [_row(pieces) for pieces in rows]


@dataclass
class _Piece:
    """A prompt and those of its responses that fit into one row."""

    prompt_ids: np.ndarray
    samples: list[Sample]
    num_tokens: int


def _split_group(group: SampleGroup, max_tokens: int) -> list[_Piece]:
    prompt = len(group.prompt_ids)
    pieces: list[_Piece] = []
    for sample in sorted((s for s in group.samples if s.loss_mask.any()), key=lambda s: -_input_length(s)):
        length = _input_length(sample)
        piece = next((p for p in pieces if p.num_tokens + length <= max_tokens), None)
        if piece is None:
            piece = _Piece(group.prompt_ids, [], prompt)
            pieces.append(piece)
        piece.samples.append(sample)
        piece.num_tokens += length
    return pieces


def _input_length(sample: Sample) -> int:
    """Response tokens that predict something: all before the last loss token."""
    return int(np.flatnonzero(sample.loss_mask)[-1])


def _row(pieces: Sequence[_Piece]) -> PackedRow:
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    segments: list[tuple[int, int, int]] = []  # id, parent, length
    losses: list[tuple[np.ndarray, np.ndarray, Sample]] = []  # loss positions, index into the response, sample
    offset = 0
    for piece in pieces:
        prompt, prompt_length = len(segments), len(piece.prompt_ids)
        tokens.append(piece.prompt_ids)
        positions.append(np.arange(prompt_length))
        segments.append((prompt, NO_PARENT, prompt_length))
        offset += prompt_length
        last_of_prompt = offset - 1
        for sample in piece.samples:
            length = _input_length(sample)
            tokens.append(sample.token_ids[:length])
            positions.append(np.arange(prompt_length, prompt_length + length))
            segments.append((len(segments), prompt, length))
            index = np.flatnonzero(sample.loss_mask)
            losses.append((np.where(index == 0, last_of_prompt, offset + index - 1), index, sample))
            offset += length
    ids, parents, lengths = (np.array(column) for column in zip(*segments, strict=True))
    counts = [len(index) for _, index, _ in losses]
    return PackedRow(
        token_ids=_int64(np.concatenate(tokens)),
        position_ids=_int64(np.concatenate(positions)),
        segment_ids=_int64(np.repeat(ids, lengths)),
        parent_ids=_int64(np.repeat(parents, lengths)),
        loss_positions=_int64(np.concatenate([where for where, _, _ in losses])),
        target_ids=_int64(np.concatenate([sample.token_ids[index] for _, index, sample in losses])),
        rollout_logprobs=_float32(np.concatenate([sample.rollout_logprobs[index] for _, index, sample in losses])),
        advantages=_float32(np.repeat([sample.advantage for _, _, sample in losses], counts)),
        retrieved_share=_float32(np.repeat([sample.retrieved_share for _, _, sample in losses], counts)),
        weights=_float32(np.repeat([sample.weight for _, _, sample in losses], counts)),
        trajectory_ids=_int64(np.repeat(np.arange(len(losses)), counts)),
    )


def _int64(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))

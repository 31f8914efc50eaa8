"""Sample groups to packed rows: tokens that trajectories share are computed once.

    SampleGroup (x many) --pack_rows--> PackedRow (x few) --rl_module--> logprobs of the loss tokens

A row holds trees of segments (``prefix_tree.py``), parents before their children: a prompt, then the responses that continue
it, where two responses may begin with a common segment, and so on to any depth. A token sees its own path: its segment up to
itself and the whole segments above. Position ids count along the path. So each prompt + response is computed as if it stood
alone, and gradients equal those of the unshared computation.

Shapes: ``L`` tokens of a row, ``M`` different predictions of a row, ``N`` loss tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rapo_rllib.batching.prefix_tree import Segment, prefix_forest
from rapo_rllib.batching.samples import Sample, SampleGroup


@dataclass(frozen=True)
class PackedRow:
    """One forward pass without a batch dimension.

    Example: prompt ``[1, 2]``, responses ``[5, 6, 7]`` (6 is an observation) and ``[5, 9, 3]``, all others trained. The last
    token of a response predicts nothing, so it is a target only::

        token_ids       1 2 5 6 9
        position_ids    0 1 2 3 3      6 and 9 both come right after the shared 5
        subtree_ends    5 5 5 4 5      5 has 6 and 9 below it, 6 only itself
        mask            1 . . . .
                        1 1 . . .
                        1 1 1 . .
                        1 1 1 1 .      first response
                        1 1 1 . 1      second response: not the 6 of the first
        scored_ids      5 9 7 3        what is predicted, each once
        scored_positions 1 2 3 4       the hidden state that predicts it
        loss_index      0 2 0 1 3      the loss tokens 5 7 and 5 9 3: both responses have a weight of their own on the shared 5
    """

    token_ids: torch.Tensor  # [L] int64
    position_ids: torch.Tensor  # [L] int64
    subtree_ends: torch.Tensor  # [L] int64, index after the last token of the row that continues the token's segment
    scored_positions: torch.Tensor  # [M] int64, index of the hidden state that predicts the scored token
    scored_ids: torch.Tensor  # [M] int64, the scored token itself
    loss_index: torch.Tensor  # [N] int64, which scored token a loss token is
    rollout_logprobs: torch.Tensor  # [N] float32, of the engine that sampled, nats
    advantages: torch.Tensor  # [N] float32
    retrieved_share: torch.Tensor  # [N] float32, F_ret of the token's trajectory
    weights: torch.Tensor  # [N] float32, share of the token in the mean over the batch
    trajectory_ids: torch.Tensor  # [N] int64, which response of the row a loss token belongs to
    off_policy: torch.Tensor  # [N] bool, whether that response is another policy's

    @property
    def num_tokens(self) -> int:
        """``L``."""
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        """``N``."""
        return len(self.loss_index)

    @property
    def target_ids(self) -> torch.Tensor:
        """``[N]`` int64, the loss tokens."""
        return self.scored_ids[self.loss_index]

    def mask(self, window: int | None = None) -> torch.Tensor:
        """Return the mask ``[L, L]`` bool, True = row token sees column token. ``window``: of sliding-window layers."""
        index = torch.arange(self.num_tokens, device=self.token_ids.device)
        visible = (index[:, None] >= index) & (index[:, None] < self.subtree_ends)
        if window is not None:
            visible &= self.position_ids[:, None] - self.position_ids < window
        return visible

    def to(self, device: torch.device | str) -> PackedRow:
        """The same row on another device."""
        return PackedRow(**{name: value.to(device) for name, value in vars(self).items()})


def pack_rows(groups: Iterable[SampleGroup], max_tokens: int, share: bool = True) -> list[PackedRow]:
    """Pack groups into rows of at most ``max_tokens`` tokens; samples without a loss token that counts are left out.

    What continues a common prefix stays together where it fits; otherwise it is split over several rows, each with the prefix.
    A single prompt + response longer than the budget gets a row of its own: it is never cut. Deterministic.

    Args:
        groups: whose samples are packed.
        max_tokens: budget of a row, shared tokens counted once.
        share: False: every prompt + response is a tree of its own, for models that cannot attend along a tree.

    Raises:
        ValueError: ``max_tokens`` is not positive.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens_per_micro_batch must be positive, got {max_tokens}")
    paths = [_Path(group.prompt_ids, sample) for group in groups for sample in group.samples if sample.counts]
    inputs = [path.input_ids for path in paths]
    if share:
        pieces = [piece for root in prefix_forest(inputs) for piece in _pieces(root, (), max_tokens)]
    else:
        roots = (prefix_forest(inputs, [index])[0] for index in range(len(inputs)))
        pieces = [_Piece((root,), root.sequences) for root in roots]
    chosen = [sorted(row.sequences) for row in _fill_rows(pieces, max_tokens)]
    return [_row([paths[index] for index in row], share) for row in chosen]


def empty_row() -> PackedRow:
    """A row of one token without a loss: what a learner without rows computes while others have some."""
    index, number = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    return PackedRow(
        token_ids=torch.zeros(1, dtype=torch.int64),
        position_ids=torch.zeros(1, dtype=torch.int64),
        subtree_ends=torch.ones(1, dtype=torch.int64),
        scored_positions=index,
        scored_ids=index,
        loss_index=index,
        rollout_logprobs=number,
        advantages=number,
        retrieved_share=number,
        weights=number,
        trajectory_ids=index,
        off_policy=index.bool(),
    )


class _Path:
    """A prompt with one of its responses, and the tokens of both that predict something: all before the last loss token."""

    def __init__(self, prompt_ids: np.ndarray, sample: Sample) -> None:
        self.sample = sample
        self.loss_indices = np.flatnonzero(sample.loss_mask)  # into the response
        self.input_ids = np.concatenate([prompt_ids, sample.token_ids[: self.loss_indices[-1]]])
        self.predicting = len(prompt_ids) + self.loss_indices - 1  # into input_ids: the token before each loss token
        self.target_ids = sample.token_ids[self.loss_indices]


@dataclass
class _Piece:
    """Sequences that go into one row together, with every segment on their paths."""

    segments: tuple[Segment, ...]
    sequences: tuple[int, ...]


def _pieces(segment: Segment, above: tuple[Segment, ...], max_tokens: int) -> list[_Piece]:
    """The whole subtree if it fits into a row with the segments ``above`` it; otherwise those of its children, and its ends."""
    path = (*above, segment)
    if not segment.children or sum(len(s.token_ids) for s in above) + segment.num_tokens <= max_tokens:
        return [_Piece((*above, *segment.walk()), segment.sequences)]
    pieces = [piece for child in segment.children for piece in _pieces(child, path, max_tokens)]
    pieces[0].sequences += segment.ends  # their tokens are all in this piece
    return pieces


class _OpenRow:
    """A row that is being filled; a segment that two of its pieces share counts once."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.num_tokens = 0
        self._segments: set[int] = set()

    def new_tokens(self, piece: _Piece) -> int:
        return sum(len(s.token_ids) for s in piece.segments if id(s) not in self._segments)

    def add(self, piece: _Piece) -> None:
        self.num_tokens += self.new_tokens(piece)
        self._segments.update(id(segment) for segment in piece.segments)
        self.sequences.extend(piece.sequences)


def _fill_rows(pieces: Sequence[_Piece], max_tokens: int) -> list[_OpenRow]:
    """Largest piece first, each into the row to which it adds the fewest tokens, among those in which it fits."""
    rows: list[_OpenRow] = []
    for piece in sorted(pieces, key=lambda piece: -sum(len(s.token_ids) for s in piece.segments)):
        fitting = [row for row in rows if row.num_tokens + row.new_tokens(piece) <= max_tokens]
        if not fitting:
            rows.append(_OpenRow())
            fitting = rows[-1:]
        min(fitting, key=lambda row: row.new_tokens(piece)).add(piece)
    return rows


def _row(paths: Sequence[_Path], share: bool) -> PackedRow:
    inputs = [path.input_ids for path in paths]
    forests = [prefix_forest(inputs)] if share else [prefix_forest(inputs, [index]) for index in range(len(inputs))]
    segments = [segment for forest in forests for root in forest for segment in root.walk()]
    lengths = [len(segment.token_ids) for segment in segments]
    starts = np.cumsum([0, *lengths[:-1]])
    where = _row_indices(segments, starts, inputs)
    predicting = np.concatenate([where[index][path.predicting] for index, path in enumerate(paths)])
    targets = np.concatenate([path.target_ids for path in paths])
    scored, loss_index = np.unique(np.stack([predicting, targets]), axis=1, return_inverse=True)
    counts = [len(path.target_ids) for path in paths]
    return PackedRow(
        token_ids=_int64(np.concatenate([segment.token_ids for segment in segments])),
        position_ids=_int64(np.concatenate([segment.start + np.arange(len(segment.token_ids)) for segment in segments])),
        subtree_ends=_int64(np.repeat([s + segment.num_tokens for s, segment in zip(starts, segments, strict=True)], lengths)),
        scored_positions=_int64(scored[0]),
        scored_ids=_int64(scored[1]),
        loss_index=_int64(loss_index.reshape(-1)),
        rollout_logprobs=_float32(np.concatenate([path.sample.rollout_logprobs[path.loss_indices] for path in paths])),
        advantages=_float32(np.concatenate([path.sample.advantages[path.loss_indices] for path in paths])),
        retrieved_share=_float32(np.repeat([path.sample.retrieved_share for path in paths], counts)),
        weights=_float32(np.repeat([path.sample.weight for path in paths], counts)),
        trajectory_ids=_int64(np.repeat(np.arange(len(paths)), counts)),
        off_policy=torch.from_numpy(np.repeat([path.sample.off_policy for path in paths], counts)),
    )


def _row_indices(segments: Sequence[Segment], starts: np.ndarray, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Find where in the row each token of each sequence stands."""
    where = [np.empty(len(tokens), dtype=np.int64) for tokens in inputs]
    for row_start, segment in zip(starts, segments, strict=True):
        stop = segment.start + len(segment.token_ids)
        for sequence in segment.sequences:
            where[sequence][segment.start : stop] = row_start + np.arange(len(segment.token_ids))
    return where


def _int64(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))

"""Packing of sample groups into rows, so that tokens that trajectories share are computed once.

    SampleGroup (x many) --pack_rows--> PackedRow (x few) --rl_module--> logprobs of the loss tokens

A row holds trees of segments (``prefix_tree.py``), parents before their children: a prompt, then the responses that continue
it, where two responses may begin with a common segment, and so on to any depth. A token sees its own path: its segment up to
itself, and all of the segments above. Position ids count along the path. So each prompt + response is computed as if it stood
alone, and gradients equal those of the unshared computation.

Shapes: ``L`` tokens of a row, ``M`` different predictions of a row, ``N`` loss tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rapo_rllib.batching.prefix_tree import Segment, prefix_forest
from rapo_rllib.batching.samples import Sample, SampleGroup


@dataclass
class PackedRow:
    """The input of one forward pass, without a batch dimension, and what the loss needs.

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
    subtree_ends: torch.Tensor  # [L] int64, index after the row's last token in or below the token's segment
    scored_positions: torch.Tensor  # [M] int64, index of the hidden state that predicts the scored token
    scored_ids: torch.Tensor  # [M] int64, the scored token itself
    loss_index: torch.Tensor  # [N] int64, index of a loss token among the scored tokens
    rollout_logprobs: torch.Tensor  # [N] float32, of the engine that sampled, nats
    advantages: torch.Tensor  # [N] float32
    retrieved_share: torch.Tensor  # [N] float32, F_ret of the token's trajectory
    weights: torch.Tensor  # [N] float32, weight of the token in the mean over the batch
    trajectory_ids: torch.Tensor  # [N] int64, which response of the row a loss token belongs to
    off_policy: torch.Tensor  # [N] bool, whether that response is off-policy: an expert's, or a replayed one
    old_logprobs: torch.Tensor | None = None  # [N] log π_old, nats; None until the first forward pass gives them
    reference_logprobs: torch.Tensor | None = None  # [N] of the frozen reference model, nats; None: no KL term

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
        """Return the row on another device."""
        return PackedRow(**{name: value.to(device) for name, value in vars(self).items() if value is not None})


def pack_rows(groups: Sequence[SampleGroup], max_tokens: int, share: bool = True) -> list[PackedRow]:
    """Pack groups into rows of at most ``max_tokens`` tokens; samples without a token in the loss are left out.

    Responses with a common prefix stay together if they fit into a row; otherwise several rows hold them, each with the prefix.
    A single prompt + response longer than the budget gets a row of its own: it is never cut. Deterministic.

    Args:
        groups: whose samples are packed.
        max_tokens: budget of a row, shared tokens counted once.
        share: False: every prompt + response is a tree of its own, for models that cannot attend along a tree.
    """
    prompts = [group.prompt_ids for group in groups for sample in group.samples if sample.counts]
    samples = [sample for group in groups for sample in group.samples if sample.counts]
    inputs = [np.concatenate([prompt, _before_last_target(sample)]) for prompt, sample in zip(prompts, samples, strict=True)]
    if share:
        forest = prefix_forest(inputs)
        pieces = [piece for root in forest for piece in _pieces(root, (), max_tokens)]
    else:
        forest = [Segment(tokens, 0, (index,), ()) for index, tokens in enumerate(inputs)]
        pieces = [{root} for root in forest]
    walk = [segment for root in forest for segment in root.walk()]
    rows: list[PackedRow] = []
    placed: set[int] = set()  # a sequence that ends in a shared segment goes into the first row that holds it
    for chosen in _fill_rows(pieces, max_tokens):
        segments = [segment for segment in walk if segment in chosen]
        members = sorted({index for segment in segments for index in segment.ends} - placed)
        placed.update(members)
        rows.append(_row(segments, {index: inputs[index] for index in members}, [samples[index] for index in members]))
    return rows


def empty_row() -> PackedRow:
    """Make a row of one token without a loss, for a learner that has no row while other learners have some."""
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


def _before_last_target(sample: Sample) -> np.ndarray:
    """Return the response's input tokens: all before the last loss token, as later ones predict nothing."""
    return sample.token_ids[: np.flatnonzero(sample.loss_mask)[-1]]


def _pieces(segment: Segment, above: tuple[Segment, ...], max_tokens: int) -> list[set[Segment]]:
    """Cut a subtree into pieces for one row each, with ``above``: the whole subtree if it fits, else its children's pieces."""
    path = (*above, segment)
    if not segment.children or _num_tokens(above) + segment.num_tokens <= max_tokens:
        return [{*above, *segment.walk()}]
    return [piece for child in segment.children for piece in _pieces(child, path, max_tokens)]


def _num_tokens(segments: Iterable[Segment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)


def _fill_rows(pieces: Sequence[set[Segment]], max_tokens: int) -> list[set[Segment]]:
    """Fill rows, largest piece first; each goes into the row to which it adds the fewest tokens, of the rows that it fits."""
    rows: list[set[Segment]] = []
    for piece in sorted(pieces, key=_num_tokens, reverse=True):
        added = [_num_tokens(piece - row) for row in rows]
        fitting = [i for i, row in enumerate(rows) if _num_tokens(row) + added[i] <= max_tokens]
        if fitting:
            rows[min(fitting, key=added.__getitem__)].update(piece)
        else:
            rows.append(set(piece))
    return rows


def _row(segments: Sequence[Segment], inputs: Mapping[int, np.ndarray], samples: Sequence[Sample]) -> PackedRow:
    """Make a row of ``segments``, parents before children, for the sequences in ``inputs``, whose samples are ``samples``."""
    lengths = [len(segment.token_ids) for segment in segments]
    starts = np.cumsum([0, *lengths[:-1]])
    below: dict[Segment, int] = {}  # number of the row's tokens in or below a segment
    for segment in reversed(segments):
        below[segment] = len(segment.token_ids) + sum(below.get(child, 0) for child in segment.children)
    where = _row_indices(segments, starts, inputs)
    loss_indices = [np.flatnonzero(sample.loss_mask) for sample in samples]  # into the response
    predicting = [own[loss - loss[-1] - 1] for own, loss in zip(where, loss_indices, strict=True)]
    targets = [sample.token_ids[loss] for sample, loss in zip(samples, loss_indices, strict=True)]
    pairs = np.stack([np.concatenate(predicting), np.concatenate(targets)])
    scored, loss_index = np.unique(pairs, axis=1, return_inverse=True)
    masks, counts = [sample.loss_mask for sample in samples], [len(loss) for loss in loss_indices]
    return PackedRow(
        token_ids=_int64(np.concatenate([segment.token_ids for segment in segments])),
        position_ids=_int64(np.concatenate([segment.start + np.arange(len(segment.token_ids)) for segment in segments])),
        subtree_ends=_int64(np.repeat([s + below[segment] for s, segment in zip(starts, segments, strict=True)], lengths)),
        scored_positions=_int64(scored[0]),
        scored_ids=_int64(scored[1]),
        loss_index=_int64(loss_index.reshape(-1)),
        rollout_logprobs=_float32(np.concatenate([s.rollout_logprobs[m] for s, m in zip(samples, masks, strict=True)])),
        advantages=_float32(np.concatenate([s.advantages[m] for s, m in zip(samples, masks, strict=True)])),
        retrieved_share=_float32(np.repeat([sample.retrieved_share for sample in samples], counts)),
        weights=_float32(np.repeat([sample.weight for sample in samples], counts)),
        trajectory_ids=_int64(np.repeat(np.arange(len(samples)), counts)),
        off_policy=torch.from_numpy(np.repeat([sample.off_policy for sample in samples], counts)),
    )


def _row_indices(segments: Sequence[Segment], starts: np.ndarray, inputs: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Find the index in the row of each token of each sequence."""
    where = {index: np.empty(len(tokens), dtype=np.int64) for index, tokens in inputs.items()}
    for row_start, segment in zip(starts, segments, strict=True):
        stop = segment.start + len(segment.token_ids)
        for sequence in where.keys() & segment.sequences:
            where[sequence][segment.start : stop] = row_start + np.arange(len(segment.token_ids))
    return list(where.values())


def _int64(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))

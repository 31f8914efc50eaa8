"""Learners with sharded weights pass through the model in lockstep: none may leave while the others wait for its shards.

Every forward and backward pass gathers weights and scatters gradients, in the same order on all learners. So all run equally
many passes, those with fewer rows on a stand-in; and one that fails in the middle of a pass must still take part in what is
left of it. It is known how far it came, as collectives are counted here:

    learner 0   gather 1, gather 2, gather 3, ...            row
    learner 1   gather 1, gather 2, error                    row
                   -    ,    -    , gather 3, ...            stand-in, whose first two collectives are left out

The numbers that come out of such an update are thrown away. All learners then raise together, and the group lives on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

Row = TypeVar("Row")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass(Generic[Result]):
    """Forward, and perhaps backward, through the models, always the same ones in this place."""

    work: Callable[[], Result] | None  # on a row; None: this learner has none left
    dummy_pass: Callable[[], Any]  # on next to nothing, without effect on gradients


def passes_over(
    rows: Sequence[Row], work: Callable[[Row], Result], dummy_pass: Callable[[], Any], count: int
) -> list[Pass[Result]]:
    """``work`` on every row, and stand-ins up to ``count``, the number of rows of the learner with most."""
    working = [Pass(partial(work, row), dummy_pass) for row in rows]
    return [*working, *(Pass[Result](None, dummy_pass) for _ in range(count - len(rows)))]


class Lockstep:
    """The collectives of one learner's sharded models, and passes that always end together."""

    def __init__(self) -> None:
        self._models: list[Any] = []  # root units
        self._count = 0  # collectives of the pass so far
        self._left_out = 0  # how many of them, from the first, the other learners have behind them

    def add_model(self, root: Any) -> None:
        """A model whose passes may break off."""
        self._models.append(root)

    def add_unit(self, unit: Any) -> None:
        """Let the collectives of an FSDP unit go through here, and sum gradients over learners."""
        unit.set_custom_all_gather(_AllGather(self))
        unit.set_custom_reduce_scatter(_ReduceScatter(self))
        unit.set_gradient_divide_factor(1.0)  # FSDP's default is the mean
        unit.set_force_sum_reduction_for_comms(True)  # by a plain sum: gloo has no other

    def run(self, passes: Sequence[Pass[Result]]) -> list[Result]:
        """The results of the passes that have work.

        Args:
            passes: of this learner; the others run equally many, with the same collectives in each.

        Raises:
            Exception: what the first work to fail raised, after all passes were brought to their ends on stand-ins.
        """
        results: list[Result] = []
        error: Exception | None = None
        for one in passes:
            self._count = self._left_out = 0
            if one.work is None or error is not None:
                one.dummy_pass()
                continue
            try:
                results.append(one.work())
            except Exception as caught:
                error = caught
                self._catch_up(one, error)
        if error is not None:
            raise error
        return results

    def _catch_up(self, failed: Pass[Any], error: Exception) -> None:
        traceback.clear_frames(error.__traceback__)  # activations of the row hang there
        for model in self._models:
            model.reset_iter_state()
        self._count, self._left_out = 0, self._count
        failed.dummy_pass()

    def should_run(self) -> bool:
        """Asked before each collective: whether it is to happen."""
        self._count += 1
        return self._count > self._left_out


class _Collective:
    """Part of FSDP's interface of a custom collective."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer for it."""
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Collective):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        if self._lockstep.should_run():
            return dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        output_tensor.zero_()
        return None


class _ReduceScatter(_Collective):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        if self._lockstep.should_run():
            return dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        output_tensor.zero_()
        return None

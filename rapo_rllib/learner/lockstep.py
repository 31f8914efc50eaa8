"""Lockstep of learners with sharded weights: no learner may leave a pass while the others wait for its shards.

Every forward and backward pass gathers weights and scatters gradients, in the same order on all learners. So all learners run
equally many passes; learners with fewer rows run some on empty rows. A learner that fails in the middle of a pass must still
take part in the rest of it. Collectives are counted here, so that it is known how many are left:

    learner 0   gather 1, gather 2, gather 3, ...            row
    learner 1   gather 1, gather 2, error                    row
                   -    ,    -    , gather 3, ...            empty row, whose first two collectives are left out

The results of such an update are thrown away. All learners then raise together, and the group lives on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rapo_rllib.errors import OutOfStepError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lockstep:
    """The collectives of one learner's sharded models, and passes that end on all learners together."""

    def __init__(self) -> None:
        self._models: list[Any] = []  # root units
        self._count = 0  # collectives of the pass so far
        self._left_out = 0  # collectives to leave out at the start of the pass, as all learners have done them

    def add_model(self, root: Any) -> None:
        """Register a sharded model, to be reset when one of its passes breaks off."""
        self._models.append(root)

    def add_unit(self, unit: Any) -> None:
        """Route the collectives of an FSDP unit through here, and let it sum gradients over learners."""
        unit.set_custom_all_gather(_Collective(self, dist.all_gather_single))
        unit.set_custom_reduce_scatter(_Collective(self, dist.reduce_scatter_single))
        unit.set_gradient_divide_factor(1.0)  # FSDP's default is the mean
        unit.set_force_sum_reduction_for_comms(True)  # by a plain sum: gloo has no other

    def run(self, items: Sequence[Item], work: Callable[[Item], Result], dummy_pass: Callable[[Item], Any]) -> list[Result]:
        """Run one pass for each item and return the results; all learners run equally many, with the same collectives in each.

        Args:
            items: of this learner.
            work: runs the pass of an item.
            dummy_pass: runs the same models on next to nothing, in place of an item's pass.

        Raises:
            Exception: the error of the first pass that failed; it is raised after dummy passes have ended all passes.
            OutOfStepError: a dummy pass failed, too.
        """
        results: list[Result] = []
        error: Exception | None = None
        for item in items:
            self._count = self._left_out = 0
            if error is not None:
                _stand_in(dummy_pass, item, error)
                continue
            try:
                results.append(work(item))
            except Exception as caught:
                error = caught
                traceback.clear_frames(error.__traceback__)  # its frames hold the row's activations
                for model in self._models:
                    model.reset_iter_state()
                self._count, self._left_out = 0, self._count
                _stand_in(dummy_pass, item, error)
        if error is not None:
            raise error
        return results

    def should_run(self) -> bool:
        """Count the next collective, and return whether to run it."""
        self._count += 1
        return self._count > self._left_out


def _stand_in(dummy_pass: Callable[[Item], Any], item: Item, failed: Exception) -> None:
    """Run a dummy pass in place of an item's; raises ``OutOfStepError`` if it fails, too."""
    try:
        dummy_pass(item)
    except Exception as error:
        raise OutOfStepError(f"{type(failed).__name__}: {failed}; an empty pass in its place: {error}") from failed


class _Collective:
    """Custom collective of an FSDP unit: it calls ``run``, unless the other learners have already done it."""

    def __init__(self, lockstep: Lockstep, run: Callable[..., dist.Work | None]) -> None:
        self._lockstep, self._run = lockstep, run

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a buffer for the collective."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **how: Any) -> dist.Work | None:
        if self._lockstep.should_run():
            return self._run(output_tensor, input_tensor, **how)
        output_tensor.zero_()
        return None

"""Passes that end together: what a learner does whose pass failed, without other learners."""

from __future__ import annotations

import pytest
import torch

from rapo_rllib.errors import LearnerError, OutOfStepError
from rapo_rllib.learner.lockstep import Lockstep
from rapo_rllib.learner.ranks import Ranks

ONE_OF_TWO = Ranks(torch.device("cpu"), distributed=True)  # in no process group: a collective would raise


def fail(item: int) -> int:
    if item == 1:
        raise OSError("no memory")
    return item


def test_items_behind_a_failure_are_dummy_passes_and_its_error_is_raised() -> None:
    dummies: list[int] = []
    with pytest.raises(OSError, match="no memory"):
        Lockstep().run([0, 1, 2], fail, dummies.append)
    assert dummies == [1, 2]
    assert Lockstep().run([0, 2], fail, dummies.append) == [0, 2]


@pytest.mark.parametrize("at", [1, 2])
def test_a_learner_whose_dummy_pass_fails_asks_no_other(at: int) -> None:
    """Others wait in the pass, so that no collective of the two would come to its end; the driver is told at once."""

    def dummy_pass(item: int) -> None:
        if item == at:
            raise OSError("still none")

    with pytest.raises(OutOfStepError) as caught, ONE_OF_TWO.raise_on_all_ranks("forward and backward"):
        Lockstep().run([0, 1, 2], fail, dummy_pass)
    assert str(caught.value) == "OSError: no memory; an empty pass in its place: still none"
    assert isinstance(caught.value, LearnerError) and isinstance(caught.value.__cause__, OSError)

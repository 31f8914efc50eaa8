"""Checksums of weights: the same for the same values wherever they lie, another for any other bit."""

from __future__ import annotations

import pytest
import torch

from rapo_rllib.weights.packing import differing, digest, noted

SIZES = [(), (0,), (3,), (61, 32), (3, 4096), (8193, 9), (2, 40_000)]  # none, in part, and all of it in summed rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("size", SIZES)
def test_every_element_counts_and_copies_agree(size: tuple[int, ...], dtype: torch.dtype) -> None:
    values = (torch.randn(size, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    expected = digest(values)
    assert digest(values.clone()) == expected and 0 <= expected < 2**32
    for index in {0, values.numel() // 2, values.numel() - 1} & set(range(values.numel())):
        changed = values.clone()
        flat = changed.view(-1)
        flat[index] = 1 if dtype == torch.int64 else torch.nextafter(flat[index], torch.tensor(1e9, dtype=dtype))
        assert digest(changed) != expected


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_values_may_lie_anywhere_in_memory(offset: int) -> None:
    memory = torch.randn(50_000).bfloat16()
    part = memory[offset:40_000]
    assert digest(part) == digest(part.clone())
    matrix = torch.randn(300, 400)
    assert digest(matrix.T) == digest(matrix.T.contiguous()) != digest(matrix)
    assert digest(matrix[7:50]) == digest(matrix[7:50].clone())


def test_rows_that_change_places_and_other_shapes_and_dtypes_are_seen() -> None:
    matrix = torch.randn(4, 16_384)
    assert digest(matrix[[1, 0, 2, 3]]) != digest(matrix)
    assert len({digest(torch.zeros(8, 8)), digest(torch.zeros(64)), digest(torch.zeros(8, 8, dtype=torch.int32))}) == 3


def test_one_optimiser_step_of_1e6_changes_the_digest_of_every_weight() -> None:
    weights = {"w": torch.nn.Parameter(0.02 * torch.randn(512, 64)), "norm": torch.nn.Parameter(torch.ones(64))}
    before = {name: digest(weight) for name, weight in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-6)
    sum((weight * torch.randn(weight.shape)).sum() for weight in weights.values()).backward()
    optimizer.step()
    assert differing(before, {name: digest(weight) for name, weight in weights.items()}) == ["norm", "w"]


def test_digests_are_those_of_the_rounded_values_that_come_out() -> None:
    named, digests = {"w": torch.randn(9, 9), "count": torch.tensor([3])}, dict[str, int]()
    rounded = dict(noted(named.items(), torch.bfloat16, digests))
    assert torch.equal(rounded["w"], named["w"].bfloat16()) and rounded["count"] is not None
    assert digests == {name: digest(tensor) for name, tensor in rounded.items()}


def test_names_that_differ() -> None:
    assert differing({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "d": 3}) == ["b", "c", "d"]

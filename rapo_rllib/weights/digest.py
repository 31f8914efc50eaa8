"""Checksums of weights: equal ones mean equal values, bit for bit. They cost about a pass through memory.

    learner: digest of what is published  ==  engine: digest of what its model was given, and of what it holds

The same values have the same digest on every device and in every process.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

import torch

Digests = dict[str, int]  # by the weight's name

_WORD = 8  # bytes that are added up as one number
_ROW = 4096  # words of a sum


def digest(tensor: torch.Tensor) -> int:
    """32 bits that depend on dtype, shape and every bit of the values.

    Words of 8 bytes are summed in rows of 4,096, modulo 2^64, and the sums' CRC is taken: the sums run where the tensor is, and
    the CRC sees few bytes. What it cannot see are words that change places within a row.
    """
    flat = tensor.detach().contiguous().view(-1)
    head = flat.numel() * flat.element_size() // (_WORD * _ROW) * (_ROW * _WORD) // flat.element_size()
    rows, rest = flat[:head], flat[head:]
    if (rows.storage_offset() * rows.element_size()) % _WORD or rows.data_ptr() % _WORD:
        rows = rows.clone()  # a view as words has to be aligned
    start = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if head:
        start = zlib.crc32(rows.view(torch.int64).view(-1, _ROW).sum(1).cpu().numpy().tobytes(), start)
    return zlib.crc32(rest.cpu().view(torch.uint8).numpy().tobytes(), start)


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Floating-point values rounded to ``dtype``; others as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def noted(
    named: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, digests: Digests
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors rounded to ``dtype``, and write their digests into ``digests``."""
    for name, tensor in named:
        rounded = cast(tensor.detach(), dtype)
        digests[name] = digest(rounded)
        yield name, rounded


def differing(expected: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Return the names that are in one only, or whose digests differ."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))

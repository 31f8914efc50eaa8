"""Weights as numpy arrays, for the way from learner to engine and into RLlib's states.

numpy has no bfloat16, so bfloat16 tensors travel as int16 views of the same bits, beside a tag that says what they are.
Checksums tell whether what arrived is what was sent.
Flow: ``rl_module.get_state`` -> Ray object store -> ``rollout/`` (engine) or ``rl_module.set_state``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

PackedTensor = tuple[str, np.ndarray]  # (torch dtype without "torch.", array; int16 bits where the dtype is bfloat16)
PackedWeights = dict[str, PackedTensor]


def pack_weights(named: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype | None = None) -> PackedWeights:
    """Copy tensors into numpy; the result never shares memory with live parameters.

    Args:
        named: pairs of name and tensor, on any device.
        dtype: what floating-point tensors are rounded to first; None keeps theirs.

    Example: ``pack_weights([("w", torch.ones(2))], torch.bfloat16) == {"w": ("bfloat16", array([16256, 16256], int16))}``
    """
    packed: PackedWeights = {}
    for name, tensor in named:
        tensor = tensor.detach()
        rounded = tensor.to("cpu", dtype if dtype and tensor.is_floating_point() else tensor.dtype)
        if rounded.data_ptr() == tensor.data_ptr():  # already on the CPU and of that dtype: .numpy() would alias it
            rounded = rounded.clone()
        tag = str(rounded.dtype).removeprefix("torch.")
        bits = rounded.contiguous().view(torch.int16) if rounded.dtype == torch.bfloat16 else rounded.contiguous()
        packed[name] = (tag, bits.numpy())
    return packed


def unpack_weights(packed: Mapping[str, PackedTensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that :func:`pack_weights` packed, bit for bit, on the CPU.

    Writeable arrays share their memory; read-only ones (out of Ray's object store) are copied, as torch has no such tensors.

    Raises:
        ValueError: an array does not have the dtype that its tag announces.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, (tag, array) in packed.items():
        expected = "int16" if tag == "bfloat16" else tag
        if str(array.dtype) != expected:
            raise ValueError(f"weight {name!r} is tagged {tag}: expected an array of {expected}, got {array.dtype}")
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        tensors[name] = tensor.view(torch.bfloat16) if tag == "bfloat16" else tensor
    return tensors


Digests = dict[str, int]  # by the weight's name

_WORD = 8  # bytes that are added up as one number
_ROW = 4096  # words of a sum


def digest(tensor: torch.Tensor) -> int:
    """32 bits that depend on dtype, shape and every bit of the values.

    The same values have the same digest on every device and in every process. It costs about a pass through memory.
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

"""The policy's weights in memory that other processes of this machine can map: how they get from learner to engines.

    SharedWeights.write(named tensors) --path--> any process: safetensors' load_file(path), which maps and does not read

The memory belongs to an anonymous file (memfd), found under ``/proc/<pid>/fd/<number>``: it has no name in a file system, so
nothing is left behind when the learner is killed, and no limit of ``/dev/shm`` is met (containers often allow 64 MB there).
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_SAFETENSORS = {
    **{torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"},
}


class SharedWeights:
    """A safetensors file in anonymous memory, written anew for every version; its layout stays.

    Args:
        named: names and tensors, on any device, as every later ``write`` will have them.
        dtype: what floating-point tensors are rounded to; None keeps theirs.
    """

    def __init__(self, named: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> None:
        places = _places(named, dtype)
        header, size = _header(places), sum(place.num_bytes for place in places)
        self._fd = os.memfd_create("rapo-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, len(header) + size)
        self._map = mmap.mmap(self._fd, 0)
        self._map[: len(header)] = header
        self._tensors = {place.name: place.view(self._map, len(header)) for place in places}

    @property
    def path(self) -> str:
        """The path by which processes of the same user on this machine find the file, while this object lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def write(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace the contents; rounding happens on the way. A reader of the previous version then reads a mixture.

        Raises:
            ValueError: a name is missing or unknown.
        """
        missing = set(self._tensors)
        for name, tensor in named:
            if name not in missing:
                raise ValueError(f"weight {name!r} has no place in the shared memory, or was written before")
            self._tensors[name].copy_(tensor.detach())
            missing.remove(name)
        if missing:
            raise ValueError(f"{len(missing)} weights were not written, {min(missing)!r} for one")

    def close(self) -> None:
        """Release the memory; processes that have mapped it keep it."""
        self._tensors.clear()
        os.close(self._fd)


@dataclass(frozen=True)
class _Place:
    """The place of one tensor in the data section."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, memory: mmap.mmap, start: int) -> torch.Tensor:
        count = math.prod(self.shape)
        if not count:  # frombuffer refuses to make nothing
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(memory, dtype=self.dtype, count=count, offset=start + self.offset).view(self.shape)


def _places(named: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> list[_Place]:
    """Wide elements first, so that every tensor is aligned to its own."""
    kinds = {name: dtype if dtype and t.is_floating_point() else t.dtype for name, t in named.items()}
    places: list[_Place] = []
    offset = 0
    for name in sorted(named, key=lambda n: -kinds[n].itemsize):
        places.append(_Place(name, kinds[name], tuple(named[name].shape), offset))
        offset += places[-1].num_bytes
    return places


def _header(places: Sequence[_Place]) -> bytes:
    """The header of the safetensors format: its length, then JSON, padded to 8 bytes."""
    entries: dict[str, Any] = {
        p.name: {"dtype": _SAFETENSORS[p.dtype], "shape": p.shape, "data_offsets": [p.offset, p.offset + p.num_bytes]}
        for p in places
    }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text

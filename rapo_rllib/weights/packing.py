"""Weights as numpy arrays, for the way from learner to engine and into RLlib's states.

numpy has no bfloat16, so bfloat16 tensors travel as int16 views of the same bits, beside a tag with their true dtype.
Flow: ``rl_module.get_state`` -> Ray object store -> ``rollout/`` (engine) or ``rl_module.set_state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

PackedTensor = tuple[str, np.ndarray]  # (torch dtype without "torch.", array; int16 bits if the dtype is bfloat16)
PackedWeights = dict[str, PackedTensor]


def pack_weights(named: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype | None = None) -> PackedWeights:
    """Copy tensors into numpy; the result never shares memory with live parameters.

    Args:
        named: pairs of name and tensor, on any device.
        dtype: floating-point tensors are rounded to it first; None keeps their own.

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
    """Unpack what :func:`pack_weights` packed into CPU tensors, bit for bit.

    Tensors share memory with writeable arrays; read-only ones (from Ray's object store) are copied: torch has no such tensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, (tag, array) in packed.items():
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        tensors[name] = tensor.view(torch.bfloat16) if tag == "bfloat16" else tensor
    return tensors

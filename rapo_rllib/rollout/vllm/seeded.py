"""Seeded sampling of a whole batch at once: noise is a function of seed, position and token, and no generator keeps a state.

    seed, position --row_keys--> two 32-bit keys a row       vocabulary --token_keys--> a 32-bit key a token
    both --gumbel_noise--> [B, V] noise --argmax(logits + noise)--> tokens

A counter-based generator ("Parallel random numbers: as easy as 1, 2, 3", Salmon et al. 2011) has no state to keep, so a row's
noise does not depend on other rows, and a batch costs one kernel; with a generator for each row it costs one per row.
Argmax of logits and Gumbel noise is a sample of their softmax (Gumbel 1954; "A* sampling", arXiv 1411.0030, section 2).

Shapes: ``B`` rows, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_LOW = 0xFFFFFFFF
_SPREAD = 0x9E3779B1  # 2**32 over the golden ratio, odd: multiples of it fill 32 bits evenly


def row_keys(seeds: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Make two independent 32-bit keys a row, ``[2, B]`` int64 on the CPU; rows of other seeds or positions get other pairs.

    A pair is the two halves of SplitMix64 of ``seed * 2**32 + position``. SplitMix64 is one to one, so pairs differ if seed or
    position does, as long as both fit into 32 bits.
    """
    mixed = ((torch.tensor(seeds, dtype=torch.int64) & _LOW) << 32) | (torch.tensor(positions, dtype=torch.int64) & _LOW)
    mixed = mixed + _signed(0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    mixed = mixed ^ _shifted(mixed, 31)
    return torch.stack([_shifted(mixed, 32), mixed & _LOW])


def token_keys(vocabulary: int) -> torch.Tensor:
    """Make a key of 32 bits for each token, ``[V]`` int64 on the CPU: ``token * spread mod 2³²``.

    Made ahead, not in the compiled code that uses them: PyTorch's compiler would multiply in 32 bits, too few for the factor.
    """
    return (torch.arange(vocabulary, dtype=torch.int64) * _SPREAD) & _LOW


def seeded_tokens(logits: torch.Tensor, keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Sample a token from each row's softmax, ``[B]`` int64.

    Args:
        logits: ``[B, V]`` float32, as sampled from; tokens at minus infinity are never drawn.
        keys: ``[2, B]`` int64 of :func:`row_keys`, on the device of the logits.
        tokens: ``[V]`` int64 of :func:`token_keys`, on the same device.
    """
    return (logits + gumbel_noise(keys, tokens)).argmax(dim=-1)


def gumbel_noise(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Compute Gumbel noise ``-log(-log(1 - u))`` with ``u`` of :func:`uniform_noise`: ``[B, V]`` float32.

    ``log1p`` keeps small ``u``, by which a rare token wins, as exact as float32 allows.
    """
    return -torch.log(-torch.log1p(-uniform_noise(keys, tokens)))


def uniform_noise(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Compute a number in the open interval (0, 1), in steps of 2^-32, for each row and token: ``[B, V]`` float32.

        x = mix(mix(token key XOR key₀) + key₁),   u = (x + 1/2) / 2³²

    ``mix`` is a finaliser of 32 bits by Wellons ("lowbias32", bias 0.11). The first key is XORed, not added: sums would
    give two rows the same numbers, shifted by some tokens.
    """
    mixed = _mixed((_mixed(tokens ^ keys[0, :, None]) + keys[1, :, None]) & _LOW)
    return ((mixed.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """Mix 32-bit numbers, held in int64, one to one, so that each bit of the result depends on all bits."""
    values = ((values ^ (values >> 16)) * 0x21F0AAAD) & _LOW
    values = ((values ^ (values >> 15)) * 0x735A2D97) & _LOW
    return values ^ (values >> 15)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 to the right and fill with zeros; ``>>`` alone fills with the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value

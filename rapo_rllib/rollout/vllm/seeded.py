"""Seeded sampling of a whole batch at once: noise is a function of seed, position and token, no generator's next number.

    seed, position --row_keys--> two 32-bit keys a row       vocabulary --token_keys--> a 32-bit key a token
    both --gumbel_noise--> [B, V] noise --argmax(logits + noise)--> tokens

A counter-based generator ("Parallel random numbers: as easy as 1, 2, 3", Salmon et al. 2011) has no state to keep, so a row's
noise does not depend on what runs beside it, and a batch costs one kernel where each row's own generator costs one per row.
Argmax of logits and Gumbel noise is a sample of their softmax (Gumbel 1954; "A* sampling", arXiv 1411.0030, section 2).

Shapes: ``B`` rows, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_LOW = 0xFFFFFFFF
_SPREAD = 0x9E3779B1  # 2**32 over the golden ratio, odd: multiples of it fill 32 bits evenly


def row_keys(seeds: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Make two independent 32-bit keys a row, ``[2, B]`` int64 on the CPU; rows of other seeds or positions share none.

    SplitMix64 of ``seed * 2**32 + position``, cut in two halves. It is one to one, so keys differ where seed or position does,
    as long as both fit into 32 bits.
    """
    mixed = ((torch.tensor(seeds, dtype=torch.int64) & _LOW) << 32) | (torch.tensor(positions, dtype=torch.int64) & _LOW)
    mixed = mixed + _signed(0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    mixed = mixed ^ _shifted(mixed, 31)
    return torch.stack([_shifted(mixed, 32), mixed & _LOW])


def token_keys(vocabulary: int) -> torch.Tensor:
    """Return a key of 32 bits for each token, ``[V]`` int64 on the CPU: ``token * spread mod 2³²``.

    Made before and not where they are used: PyTorch's compiler would multiply in 32 bits, for which the factor is too large.
    """
    return (torch.arange(vocabulary, dtype=torch.int64) * _SPREAD) & _LOW


def seeded_tokens(logits: torch.Tensor, keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return a token of each row's softmax, ``[B]`` int64.

    Args:
        logits: ``[B, V]`` float32, as sampled from; tokens at minus infinity are never drawn.
        keys: ``[2, B]`` int64 of :func:`row_keys`, on the device of the logits.
        tokens: ``[V]`` int64 of :func:`token_keys`, on the same.
    """
    return (logits + gumbel_noise(keys, tokens)).argmax(dim=-1)


def gumbel_noise(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return ``-log(-log(1 - u))`` with ``u`` of :func:`uniform_noise`: ``[B, V]`` float32.

    ``log1p`` keeps the small u, which are what a rare token wins by, as exact as float32 has them.
    """
    return -torch.log(-torch.log1p(-uniform_noise(keys, tokens)))


def uniform_noise(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return numbers of the open interval (0, 1) in steps of 2^-32, ``[B, V]`` float32: of each row and each token its own.

        x = mix(mix(token key XOR key₀) + key₁),   u = (x + 1/2) / 2³²

    ``mix`` is a finaliser of 32 bits by Wellons ("lowbias32", bias 0.11). XOR and not addition with the first key: sums would
    give two rows the same numbers, shifted by some tokens.
    """
    mixed = _mixed((_mixed(tokens ^ keys[0, :, None]) + keys[1, :, None]) & _LOW)
    return ((mixed.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """Mix 32-bit numbers in int64: one to one, each bit of the result depends on all."""
    values = ((values ^ (values >> 16)) * 0x21F0AAAD) & _LOW
    values = ((values ^ (values >> 15)) * 0x735A2D97) & _LOW
    return values ^ (values >> 15)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right, filled with zeros: int64 would be filled with its sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value

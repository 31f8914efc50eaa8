"""Noise by hash, and samples made with it. Seeds are fixed, so a test of a distribution either always passes or never.

Planned: chi-square at p > 1e-3 of each test, chosen before the first run.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from rapo_rllib.rollout.vllm.seeded import gumbel_noise, row_keys, seeded_tokens, token_keys, uniform_noise

LEAST_P = 1e-3
ROWS, VOCABULARY = 512, 1024
TOKENS = token_keys(VOCABULARY)


def keys_of(rows: int, seed: int = 3) -> torch.Tensor:
    return row_keys([seed] * rows, list(range(rows)))


def mix(value: int) -> int:
    """Lowbias32 in plain numbers."""
    value = (value ^ (value >> 16)) * 0x21F0AAAD % 2**32
    value = (value ^ (value >> 15)) * 0x735A2D97 % 2**32
    return value ^ (value >> 15)


def splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


@pytest.mark.parametrize(("seed", "position", "token"), [(0, 0, 0), (2**31 - 1, 4095, 152_063), (11, 7, 49_151)])
def test_the_hash_by_plain_numbers(seed: int, position: int, token: int) -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the first number that SplitMix64 is known to give
    key = splitmix64(seed * 2**32 + position)
    assert row_keys([seed], [position])[:, 0].tolist() == [key >> 32, key % 2**32]
    expected = mix((mix(token * 0x9E3779B1 % 2**32 ^ (key >> 32)) + key) % 2**32)
    found = uniform_noise(row_keys([seed], [position]), token_keys(token + 1))[0, token]
    assert float(found) == pytest.approx((expected + 0.5) / 2**32, rel=1e-6)


def test_keys_of_all_rows_differ() -> None:
    seeds, positions = zip(*((seed, position) for seed in (0, 1, 2**31 - 1) for position in range(10_000)), strict=True)
    assert len(set(map(tuple, row_keys(seeds, positions).T.tolist()))) == 30_000


def test_noise_of_a_row_does_not_depend_on_the_batch() -> None:
    together = uniform_noise(row_keys([5, 9, 5], [0, 4, 1]), token_keys(100))
    assert torch.equal(together[1], uniform_noise(row_keys([9], [4]), token_keys(100))[0])
    assert not torch.equal(together[0], together[2])


@pytest.mark.parametrize("step", [(1, 0), (0, 1), (1, 1), (7, 0), (0, 64)])
def test_neighbours_are_independent(step: tuple[int, int]) -> None:
    """Of positions and of tokens: pairs fill the square evenly."""
    noise = (uniform_noise(keys_of(ROWS), TOKENS) * 16).long()
    rows, tokens = step
    pairs = noise[: ROWS - rows, : VOCABULARY - tokens] * 16 + noise[rows:, tokens:]
    assert stats.chisquare(torch.bincount(pairs.flatten(), minlength=256).numpy()).pvalue > LEAST_P


def test_seeds_are_independent() -> None:
    """Seeds that differ in one bit, at the same positions."""
    first, second = (uniform_noise(row_keys([seed] * ROWS, list(range(ROWS))), TOKENS) for seed in (6, 7))
    assert abs(float(np.corrcoef(first.flatten(), second.flatten())[0, 1])) < 4 / (ROWS * VOCABULARY) ** 0.5


def test_gumbel_noise_is_gumbel() -> None:
    values = gumbel_noise(keys_of(64), TOKENS).flatten().double()
    assert torch.isfinite(values).all()
    assert stats.kstest(values.numpy(), "gumbel_r").pvalue > LEAST_P


def test_samples_follow_the_softmax() -> None:
    """100,000 positions of one request: counts of 50 tokens, some likely and some rare, one impossible."""
    logits = torch.linspace(-3, 3, 50)
    logits[17] = -torch.inf
    counts = torch.zeros(50)
    for start in range(0, 100_000, 10_000):
        keys = row_keys([8] * 10_000, list(range(start, start + 10_000)))
        counts += torch.bincount(seeded_tokens(logits.expand(10_000, -1), keys, token_keys(50)), minlength=50)
    assert counts[17] == 0
    expected = torch.softmax(logits.double(), -1) * 100_000
    possible = expected > 0
    assert stats.chisquare(counts[possible].double().numpy(), expected[possible].numpy()).pvalue > LEAST_P


def test_rare_tokens_are_drawn_as_often_as_they_should() -> None:
    """A likely token against 100 of one chance in 100,000 each: 1e-3 together, 100 expected of 100,000."""
    logits = torch.full((101,), float(np.log(1e-5)))
    logits[0] = float(np.log(1 - 1e-3))
    drawn = 0
    for start in range(0, 100_000, 20_000):
        keys = row_keys([21] * 20_000, list(range(start, start + 20_000)))
        drawn += int((seeded_tokens(logits.expand(20_000, -1), keys, token_keys(101)) > 0).sum())
    assert stats.poisson.sf(drawn - 1, 100) > LEAST_P / 2 and stats.poisson.cdf(drawn, 100) > LEAST_P / 2


def test_compiled_it_draws_the_same() -> None:
    logits, keys, tokens = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)), keys_of(5), token_keys(300)
    compiled = torch.compile(seeded_tokens, backend="aot_eager", dynamic=True)
    assert torch.equal(compiled(logits, keys, tokens), seeded_tokens(logits, keys, tokens))


def test_what_is_compiled_multiplies_no_index() -> None:
    """The compiler computes indices in 32 bits: a factor above 2^31 is refused by Triton, one below would overflow."""
    graph = torch.fx.experimental.proxy_tensor.make_fx(seeded_tokens)(torch.zeros(5, 300), keys_of(5), token_keys(300))
    assert not any("arange" in str(node.target) for node in graph.graph.nodes)

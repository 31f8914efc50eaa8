"""Entropy of tokens and steps, eq. 2."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.entropy import entropy_and_logprobs, step_entropy

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12)


def token_entropy(logits: torch.Tensor, top_k: int | None = None) -> torch.Tensor:
    return entropy_and_logprobs(logits, torch.zeros(logits.shape[:-1], dtype=torch.int64), top_k)[0]


def test_token_entropy_of_known_distributions() -> None:
    logits = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0],  # uniform over 4: log 4
            [math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)],  # 0.5*1 + 0.25*2 + 2*0.125*3 = 1.75 bit
            [math.log(3.0), 0.0, -math.inf, -math.inf],  # 3/4, 1/4: 3/4 log(4/3) + 1/4 log 4 = 0.21576 + 0.34657 = 0.56234
            [7.0, -math.inf, -math.inf, -math.inf],  # certain: 0
        ]
    )
    expected = torch.tensor([math.log(4), 1.75 * math.log(2), 0.562335, 0.0])
    torch.testing.assert_close(token_entropy(logits), expected, atol=1e-6, rtol=0)


@given(LOGITS, st.floats(-30, 30, width=32))
def test_token_entropy_is_bounded_and_blind_to_shift_and_order(logits: list[float], shift: float) -> None:
    values = torch.tensor(logits)
    entropy = float(token_entropy(values))
    assert -1e-5 <= entropy <= math.log(len(logits)) + 1e-5
    assert float(token_entropy(values + shift)) == pytest.approx(entropy, abs=1e-3)
    assert float(token_entropy(values.flip(0))) == pytest.approx(entropy, abs=1e-5)


def test_entropy_and_logprobs_of_known_distributions() -> None:
    # probabilities (3/4, 1/4, 0) and (1/3, 1/3, 1/3), of logits far from zero
    logits = torch.tensor([[math.log(3.0) + 90, 90.0, -math.inf], [-500.0, -500.0, -500.0]])
    entropies, logprobs = entropy_and_logprobs(logits, torch.tensor([1, 2]))
    assert entropies.tolist() == pytest.approx([0.562335, math.log(3)], abs=1e-5)
    assert logprobs.tolist() == pytest.approx([math.log(1 / 4), math.log(1 / 3)], abs=1e-5)
    assert entropy_and_logprobs(logits[0], torch.tensor(2))[1] == -math.inf


@pytest.mark.parametrize("top_k", [None, 1, 10, 2000])
def test_entropy_and_logprobs_are_those_of_a_log_softmax(top_k: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 5, 1000, generator=generator)
    token_ids = torch.randint(1000, (3, 5), generator=generator, dtype=torch.int32)
    entropies, logprobs = entropy_and_logprobs(logits, token_ids, top_k)
    log_p = torch.log_softmax(logits.double(), -1)
    top = log_p.sort(dim=-1, descending=True).values[..., :top_k]
    torch.testing.assert_close(entropies.double(), -(top.exp() * top).sum(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(logprobs.double(), log_p.gather(-1, token_ids.long()[..., None])[..., 0], atol=1e-5, rtol=0)


def test_step_without_tokens_has_no_entropy() -> None:
    with pytest.raises(ValueError, match="without generated tokens"):
        step_entropy([])


def test_top_entropy_of_known_distributions() -> None:
    # probabilities 1/2, 1/4, 1/8, 1/8: -p log2 p is 0.5, 0.5, 0.375, 0.375 bit
    logits = torch.tensor([1 / 8, 1 / 2, 1 / 8, 1 / 4]).log()
    bits = [float(token_entropy(logits, k)) / math.log(2) for k in (1, 2, 3, 4, 10)]
    assert bits == pytest.approx([0.5, 1.0, 1.375, 1.75, 1.75], abs=1e-6)  # renormalised, k = 2 would give 0.918


@given(LOGITS)
def test_top_entropy_grows_to_the_entropy(logits: list[float]) -> None:
    values = [float(token_entropy(torch.tensor(logits), k)) for k in range(1, len(logits) + 1)]
    assert all(a <= b + 1e-6 for a, b in itertools.pairwise(values))
    assert values[-1] == pytest.approx(float(token_entropy(torch.tensor(logits))), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [((), 3.0), ((None, "sum"), 9.0), ((2, "mean"), 1.5), ((2, "sum"), 3.0), ((20, "sum"), 9.0), ((20, "mean"), 3.0)],
)
def test_step_entropy_is_the_mean_over_all_tokens_or_what_the_settings_say(settings: tuple[Any, ...], expected: float) -> None:
    assert step_entropy([1.0, 2.0, 6.0], *settings) == expected
    assert step_entropy([0.25], *settings) == 0.25

"""The parts of the loss that are picked by name, put together by hand: GSPO, GPPO, LUFFY, replay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import policy_loss
from rapo_rllib.settings import ObjectiveSettings

PLAIN = ObjectiveSettings(importance_shaping_weight=0.0, importance_cap=None)


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def two_responses() -> LossInputs:
    """Ratios 4 and 1 with advantage 2; 1/4 and 1 with advantage -1. By sequence 2 and 1/2."""
    return LossInputs(
        logprobs=log(0.8, 0.3, 0.1, 0.3).requires_grad_(),
        old_logprobs=log(0.2, 0.3, 0.4, 0.3),
        advantages=numbers(2.0, 2.0, -1.0, -1.0),
        retrieved_share=numbers(0.0, 0.0, 0.5, 0.5),
        weights=numbers(0.25, 0.25, 0.25, 0.25),
        rollout_logprobs=log(0.2, 0.075, 0.4, 0.3),
        reference_logprobs=log(0.4, 0.3, 0.1, 0.3),
        trajectory_ids=torch.tensor([0, 0, 1, 1]),
    )


def test_gspo_by_hand() -> None:
    # clip to [0.4, 1.8]: min(2 * 2, 1.8 * 2) = 3.6 (clipped); min(0.5 * -1, 0.5 * -1) = -0.5
    # loss = -0.25 * (3.6 + 3.6 - 0.5 - 0.5); gradient of the second: -0.25 * (2 tokens * -1) * 0.5 / 2 = 0.125 each
    inputs = two_responses()
    outputs = policy_loss(inputs, replace(PLAIN, importance_level="sequence", clip_low=0.6, clip_high=0.8))
    outputs.loss.backward()
    assert float(outputs.loss.detach()) == pytest.approx(-1.55)
    assert inputs.logprobs.grad.tolist() == pytest.approx([0, 0, 0.125, 0.125])
    averages = outputs.metrics.averages()
    assert (averages["num_trajectories"], averages["ratio"], averages["ratio_max"]) == pytest.approx((2, 1.25, 2))
    for name in ("clipped_high", "clipped_high_trajectories"):
        assert averages[name] == pytest.approx(0.5), name
    assert averages["clipped_low"] == averages["clipped_low_trajectories"] == 0


def test_shares_of_trajectories_differ_from_those_of_tokens() -> None:
    # three tokens clipped (ratio 4, A > 0), of a response of 3 and not of one of 1: 3/4 of the tokens, 1/2 of the responses
    inputs = LossInputs(
        logprobs=log(0.8, 0.8, 0.8, 0.3),
        old_logprobs=log(0.2, 0.2, 0.2, 0.3),
        advantages=torch.ones(4),
        retrieved_share=torch.zeros(4),
        weights=torch.full((4,), 0.25),
        trajectory_ids=torch.tensor([1, 1, 1, 0]),
    )
    averages = policy_loss(inputs, PLAIN).metrics.averages()
    assert (averages["clipped_high"], averages["clipped_high_trajectories"]) == pytest.approx((0.75, 0.5))


def test_importance_shaping_and_engine_weight_of_a_sequence() -> None:
    # shaped: 2 * (1 + 0.2 * 0) = 2; 0.5 * (1 + 0.2 * 0.5) = 0.55; engine weights: sqrt(1 * 4) = 2 cut to 1.5; 1
    # loss = -0.25 * 2 * (1.5 * 2 * 2 - 0.55)
    settings = replace(PLAIN, importance_level="sequence", clip_low=0.9, clip_high=9.0)
    outputs = policy_loss(two_responses(), replace(settings, importance_shaping_weight=0.2, importance_cap=1.5))
    assert float(outputs.loss.detach()) == pytest.approx(-0.5 * (6 - 0.55))
    averages = outputs.metrics.averages()
    assert (averages["truncation"], averages["truncated"]) == pytest.approx((1.25, 0.5))


def test_gppo_by_hand() -> None:
    # ratios 4, 1, 1/4, 1 in [0.8, 1.28]: 2.56 (clipped), 2, -0.8 (clipped), -1; hard clipping has the same value, and
    # gradient 0 where this one has -0.25 * 2.56 and -0.25 * -0.8
    inputs = two_responses()
    loss = policy_loss(inputs, replace(PLAIN, clip_mode="gradient_preserving")).loss
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-0.25 * (2.56 + 2 - 0.8 - 1))
    assert inputs.logprobs.grad.tolist() == pytest.approx([-0.64, -0.5, 0.2, 0.25])
    hard = two_responses()
    policy_loss(hard, PLAIN).loss.backward()
    assert hard.logprobs.grad.tolist() == pytest.approx([0, -0.5, 0, 0.25])


def mixed() -> LossInputs:
    """The first response is an expert's: its old logprobs are 0."""
    inputs = two_responses()
    zeros = numbers(0, 0)
    return replace(
        inputs,
        old_logprobs=torch.cat([zeros, inputs.old_logprobs[2:]]),
        rollout_logprobs=torch.cat([zeros, inputs.rollout_logprobs[2:]]),
        off_policy=torch.tensor([True, True, False, False]),
    )


def test_luffy_by_hand() -> None:
    # expert: p / (p + 0.1) * 2 = 0.8 / 0.9 * 2, 0.3 / 0.4 * 2, not clipped; the policy's own: -0.8 (clipped), -1
    inputs = mixed()
    outputs = policy_loss(inputs, replace(PLAIN, off_policy_shaping=0.1, importance_cap=2.0))
    outputs.loss.backward()
    assert float(outputs.loss.detach()) == pytest.approx(-0.25 * (16 / 9 + 1.5 - 1.8))
    # slope of the expert's: p * 0.1 / (p + 0.1)^2 * 2
    slopes = [0.8 * 0.1 / 0.81 * 2, 0.3 * 0.1 / 0.16 * 2]
    assert inputs.logprobs.grad.tolist() == pytest.approx([-0.25 * slopes[0], -0.25 * slopes[1], 0, 0.25])


def test_replay_is_clipped_around_the_policy_that_wrote_it() -> None:
    # recorded probabilities 0.2 and 0.3: ratios 4 (clipped to 1.28) and 1, as on-policy tokens would be
    inputs = replace(two_responses(), off_policy=torch.tensor([True, True, False, False]))
    loss = policy_loss(inputs, replace(PLAIN, off_policy_shaping=None)).loss
    assert float(loss.detach()) == pytest.approx(-0.25 * (2.56 + 2 - 0.8 - 1))


def test_metrics_tell_off_policy_tokens_apart() -> None:
    averages = policy_loss(mixed(), replace(PLAIN, importance_cap=2.0)).metrics.averages()
    assert (averages["num_tokens"], averages["num_off_policy_tokens"], averages["num_trajectories"]) == (4, 2, 1)
    assert averages["off_policy_ratio"] == pytest.approx((0.8 + 0.3) / 2)
    assert averages["ratio"] == pytest.approx((0.25 + 1) / 2)
    assert (averages["clipped_low"], averages["clipped_high"]) == pytest.approx((0.5, 0))
    assert averages["mismatch_max"] == pytest.approx(math.log(4))  # of the policy's own; the expert's would be log 0.3
    assert averages["truncation"] == pytest.approx(1)


def test_the_kl_term_is_of_the_policys_own_tokens() -> None:
    settings = replace(PLAIN, kl_coeff=0.5)
    with_kl, without = policy_loss(mixed(), settings), policy_loss(mixed(), PLAIN)
    assert with_kl.metrics.averages()["kl"] == 0  # the reference differs on the expert's first token alone
    assert float(with_kl.loss.detach()) == pytest.approx(float(without.loss.detach()))
    assert policy_loss(two_responses(), settings).metrics.averages()["kl"] > 0


def test_masked_tokens_are_in_no_sequence() -> None:
    inputs = two_responses()
    bad = {name: torch.cat([v.detach(), v.detach()[:1]]) for name, v in inputs.given().items()}
    bad["logprobs"][-1], bad["weights"][-1] = math.nan, 0.0
    bad["logprobs"].requires_grad_()
    settings = replace(PLAIN, importance_level="sequence", importance_cap=1.5)
    outputs, expected = policy_loss(LossInputs(**bad), settings), policy_loss(inputs, settings)
    outputs.loss.backward()
    expected.loss.backward()
    assert float(outputs.loss) == pytest.approx(float(expected.loss))
    assert bad["logprobs"].grad.tolist() == pytest.approx([*inputs.logprobs.grad.tolist(), 0.0])
    assert outputs.metrics.averages() == pytest.approx(expected.metrics.averages())


def test_a_part_without_its_input_is_refused() -> None:
    with pytest.raises(ValueError, match="importance_level 'sequence' needs trajectory_ids, got None"):
        policy_loss(replace(two_responses(), trajectory_ids=None), replace(PLAIN, importance_level="sequence"))

"""The whole loss, eq. 11: value, gradient, metrics, masks."""

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rapo_rllib.objective.advantages import combined_advantages, outcome_advantages, retrieval_advantages
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import aggregation_weight, policy_loss
from rapo_rllib.objective.loss_metrics import LossMetrics
from rapo_rllib.settings import ObjectiveSettings

SETTINGS = ObjectiveSettings()
NUMBER = st.floats(-2, 2)


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def four_tokens() -> LossInputs:
    """Ratios 1.2, 1.5, 0.5, 1; engine weights 1.25, 1, 0.5, 4 (cut to 2)."""
    return LossInputs(
        logprobs=log(0.6, 0.6, 0.1, 0.4).requires_grad_(),
        old_logprobs=log(0.5, 0.4, 0.2, 0.4),
        rollout_logprobs=log(0.4, 0.4, 0.4, 0.1),
        advantages=numbers(2.0, 2.0, -1.0, -1.0),
        retrieved_share=numbers(0.4, 0.4, 0.0, 0.0),
        weights=numbers(0.25, 0.25, 0.25, 0.25),
        reference_logprobs=log(0.3, 0.6, 0.1, 0.4),
    )


def test_loss_by_hand() -> None:
    # shaped: 1.02 * 1.2 = 1.224; 1.02 * 1.5 = 1.53; 0.5; 1
    # clipped: 2.448; 1.28 * 2 = 2.56; 0.8 * -1 = -0.8; -1
    # times engine weight 1.25, 1, 0.5, 2: 3.06; 2.56; -0.4; -2; sum 3.22
    # k3: d = log 1/2: 0.5 - 1 + 0.693147 = 0.193147, others 0; beta 0.5: 0.0965736
    # loss = -0.25 * (3.22 - 0.0965736) = -0.7808566
    outputs = policy_loss(four_tokens(), replace(SETTINGS, kl_coeff=0.5))
    assert float(outputs.loss.detach()) == pytest.approx(-0.7808566, abs=1e-6)


def test_gradient_by_hand() -> None:
    # d clipped / d logprob = shaped ratio * A where not clipped: 1.224 * 2; 0; 0; 1 * -1; times engine weight: 3.06, 0, 0, -2
    # d k3 / d logprob = 1 - exp(d): 1 - 1/2 = 0.5 at the first, 0 elsewhere; beta 0.5: 0.25
    # gradient = -0.25 * (3.06 - 0.25, 0, 0, -2) = (-0.7025, 0, 0, 0.5)
    inputs = four_tokens()
    policy_loss(inputs, replace(SETTINGS, kl_coeff=0.5)).loss.backward()
    torch.testing.assert_close(inputs.logprobs.grad, numbers(-0.7025, 0.0, 0.0, 0.5))


def test_metrics_by_hand() -> None:
    outputs = policy_loss(four_tokens(), replace(SETTINGS, kl_coeff=0.5, dual_clip=3.0))
    averages = outputs.metrics.averages()
    expected = {
        "num_tokens": 4,
        "num_off_policy_tokens": 0,
        "num_trajectories": 0,  # nobody said which token is whose
        "clipped_low_trajectories": 0,
        "clipped_high_trajectories": 0,
        "off_policy_ratio": 0,
        "ratio": (1.2 + 1.5 + 0.5 + 1) / 4,
        "ratio_max": 1.5,
        "clipped_low": 1 / 4,
        "clipped_high": 1 / 4,
        "dual_clipped": 0.0,
        "truncation": (1.25 + 1 + 0.5 + 2) / 4,
        "truncated": 1 / 4,
        # log(6/4), log(6/4), log(1/4), log(4)
        "mismatch": (2 * math.log(1.5) + 2 * math.log(4)) / 4,
        "mismatch_max": math.log(4),
        # x - 1 - log x for x = 1.5, 1.5, 0.25, 4
        "mismatch_kl": (2 * (0.5 - math.log(1.5)) + (-0.75 + math.log(4)) + (3 - math.log(4))) / 4,
        "kl": 0.193147 / 4,
    }
    assert averages == pytest.approx(expected, abs=1e-6)


def test_dual_clipped_tokens_are_counted() -> None:
    inputs = replace(four_tokens(), logprobs=log(0.6, 0.6, 0.8, 0.4), rollout_logprobs=None)  # third ratio: 4 at A < 0
    outputs = policy_loss(inputs, replace(SETTINGS, dual_clip=3.0))
    assert outputs.metrics.averages()["dual_clipped"] == 0.25
    # 2.448 + 2.56 + 3 * -1 - 1 = 1.008, no engine weight
    assert float(outputs.loss) == pytest.approx(-0.252, abs=1e-6)


def test_clip_sees_the_shaped_ratio() -> None:
    # share 1: 1.05 * 1.25 = 1.3125 is above 1.28; 1.05 * 0.78 = 0.819 is not below 0.8
    advantages, ones = numbers(1.0, -1.0), numbers(1.0, 1.0)
    outputs = policy_loss(LossInputs(log(0.5, 0.39).requires_grad_(), log(0.4, 0.5), advantages, ones, ones), SETTINGS)
    averages = outputs.metrics.averages()
    assert (averages["clipped_low"], averages["clipped_high"]) == (0.0, 0.5)
    assert float(outputs.loss.detach()) == pytest.approx(-(1.28 - 0.819))


def test_metrics_add_over_micro_batches() -> None:
    whole = four_tokens()
    parts = [LossInputs(**{name: values[cut] for name, values in whole.given().items()}) for cut in (slice(0, 1), slice(1, 4))]
    outputs = [policy_loss(part, SETTINGS) for part in parts]
    expected = policy_loss(whole, SETTINGS)
    values = {field.name: [getattr(output.metrics, field.name) for output in outputs] for field in fields(LossMetrics)}
    combined = LossMetrics(**{name: max(own) if name.endswith("_max") else sum(own) for name, own in values.items()})
    assert combined.averages() == pytest.approx(expected.metrics.averages())
    assert float(outputs[0].loss + outputs[1].loss) == pytest.approx(float(expected.loss))


def test_empty_micro_batch_is_a_zero_loss_with_gradient() -> None:
    nothing = torch.zeros(0, requires_grad=True)
    outputs = policy_loss(LossInputs(*[nothing] * 5, rollout_logprobs=nothing, reference_logprobs=nothing), SETTINGS)
    outputs.loss.backward()
    assert float(outputs.loss) == 0.0
    assert set(outputs.metrics.averages().values()) == {0.0}


def test_metrics_have_no_gradient() -> None:
    metrics = policy_loss(four_tokens(), SETTINGS).metrics
    assert not any(value.requires_grad for value in vars(metrics).values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_masked_tokens_have_exactly_no_part_in_it(bad: float) -> None:
    inputs = four_tokens()
    broken = {name: torch.cat([values.detach(), numbers(bad)]) for name, values in inputs.given().items()}
    broken["weights"][-1] = 0.0
    broken["logprobs"].requires_grad_()
    settings = replace(SETTINGS, kl_coeff=0.5)
    outputs, expected = policy_loss(LossInputs(**broken), settings), policy_loss(inputs, settings)
    outputs.loss.backward()
    expected.loss.backward()
    assert broken["logprobs"].grad.tolist() == [*inputs.logprobs.grad.tolist(), 0.0]
    assert float(outputs.loss) == float(expected.loss)
    assert outputs.metrics.averages() == expected.metrics.averages()


def test_nan_of_a_trained_token_is_not_hidden() -> None:
    inputs = replace(four_tokens(), advantages=numbers(2.0, math.nan, -1.0, -1.0))
    assert math.isnan(float(policy_loss(inputs, SETTINGS).loss))


def test_first_step_has_ratio_one_and_the_full_engine_weight() -> None:
    inputs = four_tokens()
    first = replace(inputs, old_logprobs=inputs.logprobs.detach())
    outputs = policy_loss(first, SETTINGS)
    outputs.loss.backward()
    # r = 1; shaped 1.02, 1.02, 1, 1; engine weights 1.5, 1.5, 0.25, 4 -> 2: gradient -0.25 * w * shaped * A
    torch.testing.assert_close(inputs.logprobs.grad, numbers(-0.765, -0.765, 0.0625, 0.5))
    assert outputs.metrics.averages()["ratio_max"] == 1.0


def test_engine_as_old_policy_needs_no_truncated_weight() -> None:
    inputs = four_tokens()
    engine = replace(inputs, old_logprobs=inputs.rollout_logprobs)
    with_weight, without = policy_loss(engine, SETTINGS), policy_loss(replace(engine, rollout_logprobs=None), SETTINGS)
    assert float(with_weight.loss) == float(without.loss)
    assert with_weight.metrics.averages()["truncated"] == 0.0
    assert with_weight.metrics.averages()["mismatch_max"] == pytest.approx(math.log(4))


def test_no_cap_means_no_correction() -> None:
    inputs = four_tokens()
    without = policy_loss(replace(inputs, rollout_logprobs=None), SETTINGS)
    assert float(policy_loss(inputs, replace(SETTINGS, importance_cap=None)).loss) == float(without.loss)


def test_kl_without_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kl_coeff is 0\.1: the loss needs reference_logprobs"):
        policy_loss(replace(four_tokens(), reference_logprobs=None), replace(SETTINGS, kl_coeff=0.1))


def test_reference_is_measured_but_not_trained_on_at_zero_coefficient() -> None:
    inputs = four_tokens()
    outputs = policy_loss(inputs, SETTINGS)
    assert outputs.metrics.averages()["kl"] == pytest.approx(0.193147 / 4, abs=1e-6)
    assert float(outputs.loss) == float(policy_loss(replace(inputs, reference_logprobs=None), SETTINGS).loss)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"advantages: got shape \[1\], expected that of logprobs, \[4\]"):
        replace(four_tokens(), advantages=numbers(1.0))


def test_loss_is_the_mean_of_eq_11_over_a_group() -> None:
    # two trajectories of 1 and 3 tokens, r = 1, nothing retrieved: mean over tokens, then over the group
    weights = [aggregation_weight(1, 2, 1, 4, "trajectory")] + [aggregation_weight(3, 2, 1, 4, "trajectory")] * 3
    logprobs = torch.full((4,), -1.0, dtype=torch.float64)
    advantages = numbers(0.7, -0.7, -0.7, -0.7)
    outputs = policy_loss(LossInputs(logprobs, logprobs, advantages, torch.zeros_like(logprobs), numbers(*weights)), SETTINGS)
    assert float(outputs.loss) == pytest.approx(0.0, abs=1e-12)  # -(0.7 - 0.7) / 2


@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=6), st.sampled_from([None, 3.0]))
def test_gradient_is_that_of_finite_differences(rows: list[tuple[float, float, float]], dual_clip: float | None) -> None:
    drift, advantages, rollout_drift = (numbers(*column) for column in zip(*rows, strict=True))
    # Away from the corners of clip (0.8, 1.28, 3), where there is no derivative to compare with.
    shaped = 1.01 * drift.exp()
    corners = numbers(0.8, 1.28, 3.0)
    drift = torch.where(((shaped[:, None] - corners).abs() < 1e-3).any(-1), 0.0, drift)
    old = torch.full_like(drift, -3.0)
    settings = replace(SETTINGS, dual_clip=dual_clip, kl_coeff=0.3)

    def loss(logprobs: torch.Tensor) -> torch.Tensor:
        shares, weights = torch.full_like(old, 0.2), torch.full_like(old, 0.5)
        return policy_loss(
            LossInputs(logprobs, old, advantages, shares, weights, old + rollout_drift, old - 0.4), settings
        ).loss

    logprobs = (old + drift).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logprobs), logprobs)
    step = 1e-6
    for i, unit in enumerate(torch.eye(len(rows), dtype=torch.float64)):
        slope = (loss(logprobs.detach() + step * unit) - loss(logprobs.detach() - step * unit)) / (2 * step)
        assert float(gradient[i]) == pytest.approx(float(slope), abs=1e-6, rel=1e-6)


@given(st.floats(-1, 1), st.lists(NUMBER, min_size=2, max_size=8), st.data())
def test_equal_outcomes_give_exactly_no_gradient_whatever_was_retrieved(reward: float, z: list[float], data) -> None:
    size = len(z)
    drift = data.draw(st.lists(NUMBER, min_size=size, max_size=size))
    shares = data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))
    advantages = combined_advantages(outcome_advantages([reward] * size), retrieval_advantages(z), weight=0.2)
    old = torch.full((size,), -2.0)
    logprobs = (old + torch.tensor(drift)).requires_grad_()
    inputs = LossInputs(logprobs, old, advantages, torch.tensor(shares), torch.full((size,), 1 / size), old - 0.1)
    policy_loss(inputs, replace(SETTINGS, dual_clip=3.0)).loss.backward()
    assert logprobs.grad.tolist() == [0.0] * size


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8))
def test_without_retrievals_it_is_plain_grpo(rows: list[tuple[float, float]]) -> None:
    drift, advantages = (numbers(*column) for column in zip(*rows, strict=True))
    old, weights = torch.full_like(drift, -2.0), torch.full_like(drift, 1 / len(rows))
    inputs = LossInputs(old + drift, old, advantages, torch.zeros_like(old), weights)
    ratio = (inputs.logprobs - old).exp()
    grpo = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages).mean()
    assert float(policy_loss(inputs, SETTINGS).loss) == pytest.approx(float(grpo), abs=1e-12)


@given(st.permutations(range(4)))
def test_order_of_tokens_does_not_matter(order: list[int]) -> None:
    inputs = four_tokens()
    shuffled = LossInputs(**{name: values[order] for name, values in inputs.given().items()})
    assert float(policy_loss(shuffled, SETTINGS).loss) == pytest.approx(float(policy_loss(inputs, SETTINGS).loss), abs=1e-12)


def hybrid_gradient(settings: ObjectiveSettings, advantage: float) -> torch.Tensor:
    """Of a trajectory of three tokens, a fifth of which was retrieved, at ratio 1."""
    logprobs, ids = log(0.5, 0.4, 0.2).requires_grad_(), torch.zeros(3, dtype=torch.int64)
    old, shares = logprobs.detach().clone(), numbers(0.2, 0.2, 0.2)
    inputs = LossInputs(logprobs, old, numbers(*[advantage] * 3), shares, numbers(1, 1, 1) / 3, trajectory_ids=ids)
    policy_loss(inputs, settings).loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_shaping_after_a_narrow_clip_leaves_hybrids_their_gradient(level: str, advantage: float) -> None:
    narrow = replace(SETTINGS, importance_level=level, clip_low=3e-4, clip_high=4e-4)
    # (1 + 0.05 * 0.2) * A per token, a third of it each
    expected = numbers(*[-1.01 * advantage / 3] * 3)
    torch.testing.assert_close(hybrid_gradient(replace(narrow, shaping_order="after_clip"), advantage), expected)
    before = hybrid_gradient(narrow, advantage)
    torch.testing.assert_close(before, torch.zeros_like(expected) if advantage > 0 else expected)


def test_shaping_after_the_clip_by_hand() -> None:
    # ratios 1.2, 1.5, 0.5, 1; clipped: 2.4; 1.28 * 2 = 2.56; -0.8; -1
    # shaped by 1.02 at the first two; engine weights 1.25, 1, 0.5, 2
    # 1.02 * 2.4 * 1.25 + 1.02 * 2.56 - 0.4 - 2 = 3.06 + 2.6112 - 2.4 = 3.2712
    outputs = policy_loss(four_tokens(), replace(SETTINGS, shaping_order="after_clip"))
    assert float(outputs.loss.detach()) == pytest.approx(-0.25 * 3.2712, abs=1e-9)


def test_clip_sees_the_bare_ratio_where_shaping_comes_after_it() -> None:
    # as in test_clip_sees_the_shaped_ratio: 1.25 is below 1.28, 0.78 below 0.8
    advantages, ones = numbers(1.0, -1.0), numbers(1.0, 1.0)
    inputs = LossInputs(log(0.5, 0.39), log(0.4, 0.5), advantages, ones, ones)
    averages = policy_loss(inputs, replace(SETTINGS, shaping_order="after_clip")).metrics.averages()
    assert (averages["clipped_low"], averages["clipped_high"]) == (0.5, 0.0)


def test_both_orders_are_one_where_nothing_is_clipped_or_retrieved() -> None:
    nothing = replace(four_tokens(), retrieved_share=numbers(0, 0, 0, 0))
    losses = [policy_loss(nothing, replace(SETTINGS, shaping_order=order)).loss for order in ("before_clip", "after_clip")]
    assert torch.equal(*losses)


def test_at_token_level_the_engines_weight_is_each_tokens_own() -> None:
    """However tokens belong to trajectories: test_loss_by_hand has none, and the same numbers."""
    for ids in ([0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 3]):
        tokens = replace(four_tokens(), trajectory_ids=torch.tensor(ids))
        outputs = policy_loss(tokens, replace(SETTINGS, kl_coeff=0.5, importance_level="token"))
        assert float(outputs.loss.detach()) == pytest.approx(-0.7808566, abs=1e-6)
        averages = outputs.metrics.averages()
        assert averages["truncation"] == pytest.approx((1.25 + 1 + 0.5 + 2) / 4) and averages["truncated"] == 1 / 4


def test_at_sequence_level_it_is_that_of_the_whole_response() -> None:
    # log ratios to the engine: log 1.25, log 1 -> sqrt 1.25; log 0.5, log 4 -> sqrt 2, cut to 1.2
    tokens = replace(four_tokens(), trajectory_ids=torch.tensor([0, 0, 1, 1]))
    outputs = policy_loss(tokens, replace(SETTINGS, importance_level="sequence", importance_cap=1.2))
    averages = outputs.metrics.averages()
    assert averages["truncation"] == pytest.approx((2 * math.sqrt(1.25) + 2 * 1.2) / 4) and averages["truncated"] == 2 / 4

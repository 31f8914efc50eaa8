"""The local learner: what it trains on, what it skips, what it saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core import ALL_MODULES, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from tiny_learner import build, trajectory_groups
from tiny_models import save_tiny_model

from rapo_rllib.batching.samples import SampleGroup
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.errors import NotFiniteError
from rapo_rllib.learner import scoring
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.rl_module import LOGPROBS, ROW
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import TokenKind, Trajectory
from rapo_rllib.weights.packing import unpack_weights


def batch(num_minibatches: int = 1, count: int = 4, **objective: Any) -> TrainingBatch:
    return TrainingBatch.from_groups(trajectory_groups(count), ObjectiveSettings(**objective), num_minibatches)


def metric(results: dict[str, Any], name: str) -> float:
    return float(results[DEFAULT_MODULE_ID][name].peek())


def weights(learner: RAPOTorchLearner) -> dict[str, torch.Tensor]:
    return unpack_weights(learner.policy.get_state())


def test_update_raises_the_probability_of_what_was_rewarded(folder: Path) -> None:
    learner = build(folder, num_epochs=5)
    groups = trajectory_groups(2, size=2)  # member 0 earns 0, member 1 earns 1
    sequences = [[*t.prompt_ids, *t.token_ids] for group in groups for t in group.trajectories]
    policy = [[k == TokenKind.POLICY for k in t.kinds] for group in groups for t in group.trajectories]

    def mean_logprobs() -> list[float]:
        scores = [score[-len(mask) :] for score, mask in zip(learner.score(sequences), policy, strict=True)]
        return [float(np.mean(np.array(s)[m])) for s, m in zip(scores, policy, strict=True)]

    before = mean_logprobs()
    for _ in range(3):
        # the ratio is taken to the learner's own logprobs: random rollout logprobs would be clipped at once
        learner.config.old_logprobs = "learner"
        learner.update(training_data=TrainingBatch.from_groups(groups, ObjectiveSettings()))
    after = mean_logprobs()
    assert after[1] > before[1] and after[3] > before[3] and after[0] < before[0] and after[2] < before[2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_scales_its_logits_in_a_way_of_its_own_is_refused(tmp_path: Path, dtype: str) -> None:
    build(save_tiny_model(tmp_path / "divides", "granite"), dtype=dtype)
    with pytest.raises(ValueError, match=r"multiplies': 'hyperclovax' models have other logits .*\(by 89%\)"):
        build(save_tiny_model(tmp_path / "multiplies", "hyperclovax"), dtype=dtype)


def test_metrics_and_counters(folder: Path) -> None:
    learner, data = build(folder, num_epochs=2), batch(num_minibatches=2)
    results = learner.update(training_data=data, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 24})
    assert metric(results, "num_steps") == 4 and metric(results, "num_skipped_steps") == 0
    assert metric(results, "num_tokens") == 2 * sum(group.num_loss_tokens for group in data.groups)
    assert metric(results, "weights_seq_no") == 1 == learner._weights_seq_no
    for name in ("total_loss", "gradient_norm", "entropy", "ratio", "ratio_max", "mismatch", "tokens_per_s", "seconds"):
        assert np.isfinite(metric(results, name)), name
    assert metric(results, "entropy") > 0 and metric(results, "ratio_max") >= metric(results, "ratio")
    assert metric(results, "default_optimizer_learning_rate") == pytest.approx(1e-3)
    assert results[ALL_MODULES]["num_env_steps_trained"].peek() == 24  # 12 trajectories of two steps


def test_old_logprobs_of_the_learner_give_ratio_one_and_measure_the_mismatch(folder: Path) -> None:
    results = build(folder, old_logprobs="learner", lr=0.0).update(training_data=batch())
    assert metric(results, "ratio_max") == pytest.approx(1.0, abs=1e-6)
    assert 0 < metric(results, "mismatch") <= metric(results, "mismatch_max")


@pytest.mark.parametrize("kind", [TokenKind.OBSERVATION, TokenKind.RETRIEVED])
def test_tokens_of_others_get_no_gradient(folder: Path, kind: TokenKind) -> None:
    """The last token of a trajectory, if not the policy's, changes nothing; one before policy tokens is context only."""
    groups = trajectory_groups(2)
    for group in groups:
        for member in group.trajectories:
            member.token_ids += [5, 6]
            member.kinds += [kind, kind]
            member.logprobs += [0.0, 0.0]
            member.entropies += [0.0, 0.0]
    reference, changed = build(folder), build(folder)
    data = TrainingBatch.from_groups(groups, ObjectiveSettings())
    for group in groups:
        for member in group.trajectories:
            member.token_ids[-2:] = [7, 8]
            member.logprobs[-2:] = [-9.0, -9.0]
    other = TrainingBatch.from_groups(groups, ObjectiveSettings())
    reference.update(training_data=data)
    changed.update(training_data=other)
    assert all(torch.equal(a, b) for a, b in zip(weights(reference).values(), weights(changed).values(), strict=True))


def test_minibatch_budget_and_packing_do_not_change_the_step(folder: Path) -> None:
    small, large = build(folder, max_tokens_per_micro_batch=20), build(folder, max_tokens_per_micro_batch=10_000)
    data = batch()
    assert metric(small.update(training_data=data), "num_micro_batches") > 4
    assert metric(large.update(training_data=data), "num_micro_batches") == 1
    for a, b in zip(weights(small).values(), weights(large).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


def test_sequences_are_whole_however_rows_are_packed(folder: Path) -> None:
    data = batch(importance_level="sequence")
    settings = {"importance_level": "sequence", "old_logprobs": "learner", "num_epochs": 2, "clip_low": 0.01, "clip_high": 0.01}
    small, large = (build(folder, max_tokens_per_micro_batch=budget, **settings) for budget in (20, 10_000))
    results = [learner.update(training_data=data) for learner in (small, large)]
    assert metric(results[0], "num_micro_batches") > 4 and metric(results[1], "num_micro_batches") == 2
    for name in ("clipped_low_trajectories", "clipped_high_trajectories", "ratio_max"):
        assert metric(results[0], name) == pytest.approx(metric(results[1], name), rel=1e-4), name
    assert metric(results[0], "num_trajectories") == 2 * 12
    assert 0 < metric(results[0], "clipped_high_trajectories") < 1
    for a, b in zip(weights(small).values(), weights(large).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("old_logprobs", ["rollout", "learner"])
def test_off_policy_tokens_have_their_own_old_policy(folder: Path, old_logprobs: str) -> None:
    """An expert's ratio is the probability itself, and neither it nor its entropy is in the numbers of the rollouts."""
    groups = trajectory_groups(2)
    for group in groups:
        expert = Trajectory(group.question.id, group.trajectories[0].prompt_ids, origin="expert", reward=1.0, end="answer")
        expert.append_expert([5, 6, 7, 8])
        expert.append_observation([9, 9])
        expert.append_expert([10])
        group.off_policy = [expert]
    learner = build(folder, old_logprobs=old_logprobs, lr=0.0)
    sequences = [[*t.prompt_ids, *t.token_ids] for group in groups for t in group.off_policy]
    scores = [score[-7:] for score in learner.score(sequences)]
    probabilities = np.exp([score[i] for score in scores for i in (0, 1, 2, 3, 6)])
    mixed = learner.update(training_data=TrainingBatch.from_groups(groups, ObjectiveSettings()))
    assert metric(mixed, "num_off_policy_tokens") == 10 and metric(mixed, "num_off_policy_trajectories") == 2
    assert metric(mixed, "off_policy_ratio") == pytest.approx(float(probabilities.mean()), rel=0.05)  # score() is in bfloat16
    for group in groups:
        group.off_policy = []
    alone = learner.update(training_data=TrainingBatch.from_groups(groups, ObjectiveSettings()))
    for name in ("ratio", "ratio_max", "mismatch", "mismatch_kl", "truncation", "truncated", "entropy"):
        assert metric(mixed, name) == pytest.approx(metric(alone, name), rel=1e-5), name
    assert metric(mixed, "gradient_norm") != metric(alone, "gradient_norm")


def test_nothing_to_learn_is_no_step(folder: Path) -> None:
    learner, groups = build(folder), trajectory_groups(2)
    for group in groups:
        for member in group.trajectories:
            member.reward = 1.0
    before = weights(learner)
    results = learner.update(training_data=TrainingBatch.from_groups(groups, ObjectiveSettings()))
    assert metric(results, "num_steps") == 0 and metric(results, "num_groups_without_signal") == 2
    assert all(torch.equal(a, b) for a, b in zip(before.values(), weights(learner).values(), strict=True))


def poisoned(data: TrainingBatch) -> TrainingBatch:
    """The same batch, with one advantage that is NaN."""
    first: SampleGroup = data.minibatches[0][0]
    broken = np.full_like(first.samples[0].advantages, np.nan)
    group = replace(first, samples=(replace(first.samples[0], advantages=broken), *first.samples[1:]))
    return replace(data, minibatches=((group, *data.minibatches[0][1:]), *data.minibatches[1:]))


def test_step_that_is_not_finite_is_skipped_and_counted_then_refused(folder: Path) -> None:
    learner, data = build(folder), batch(num_minibatches=2)
    learner.update(training_data=data)
    before = weights(learner)
    results = learner.update(training_data=poisoned(batch()))
    assert metric(results, "num_skipped_steps") == 1 and metric(results, "num_steps") == 0
    assert all(torch.equal(a, b) for a, b in zip(before.values(), weights(learner).values(), strict=True))
    learner.update(training_data=data)  # a good step ends the row
    for _ in range(4):
        learner.update(training_data=poisoned(batch()))
    with pytest.raises(NotFiniteError, match="5 optimiser steps in a row were not finite"):
        learner.update(training_data=poisoned(batch()))


def test_gradient_is_clipped_by_its_global_norm(folder: Path) -> None:
    learner = build(folder, grad_clip=1e-3)
    norm = metric(learner.update(training_data=batch()), "gradient_norm")
    moments = [state["exp_avg"] / 0.1 for state in learner.get_optimizer(DEFAULT_MODULE_ID).state.values()]  # 1 - beta_1
    assert norm > 1e-3 and float(torch.nn.utils.get_total_norm(moments)) == pytest.approx(1e-3, rel=1e-3)


def test_no_gradient_stays_between_updates(folder: Path) -> None:
    learner = build(folder)
    learner.update(training_data=batch())
    assert all(parameter.grad is None for parameter in learner.policy.parameters())


def test_kl_term_pulls_towards_the_initial_model_and_keeps_groups_without_signal(folder: Path) -> None:
    learner = build(folder, kl_coeff=10.0, lr=1e-2, num_epochs=3)
    groups = trajectory_groups(2)
    first = learner.update(training_data=TrainingBatch.from_groups(groups, ObjectiveSettings(kl_coeff=10.0)))
    for group in groups:
        for member in group.trajectories:
            member.reward = 0.0  # from here on only the KL term has a gradient
    flat = TrainingBatch.from_groups(groups, ObjectiveSettings(kl_coeff=10.0))
    second = learner.update(training_data=flat)
    for _ in range(5):
        last = learner.update(training_data=flat)
    assert metric(first, "kl") > 0 and metric(last, "kl") < metric(second, "kl")
    assert "_reference" not in "".join(learner.get_state()["rl_module"][DEFAULT_MODULE_ID])


def test_the_reference_model_is_loaded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What training started from: the folder's weights may be others later."""
    learner, loaded = build(folder, kl_coeff=0.1), []
    load = scoring.load_causal_lm
    monkeypatch.setattr(scoring, "load_causal_lm", lambda *arguments: loaded.append(arguments) or load(*arguments))
    for _ in range(3):
        learner.update(training_data=batch(kl_coeff=0.1))
    assert len(loaded) == 1


def test_learning_rate_schedule(folder: Path) -> None:
    """What is logged is the rate that the update had; the schedule moves on behind it."""
    learner = build(folder, lr=[[0, 1e-3], [100, 0.0]])
    for steps, had, then in ((0, 1e-3, 1e-3), (50, 1e-3, 5e-4), (100, 5e-4, 0.0), (120, 0.0, 0.0)):
        before = weights(learner)
        results = learner.update(training_data=batch(), timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: steps})
        assert metric(results, "default_optimizer_learning_rate") == pytest.approx(had, abs=1e-9)
        assert learner._get_optimizer_lr(learner.get_optimizer(DEFAULT_MODULE_ID)) == pytest.approx(then, abs=1e-9)
        moved = any(not torch.equal(a, b) for a, b in zip(before.values(), weights(learner).values(), strict=True))
        assert moved == (had > 0)


def test_pi_old_of_every_minibatch_is_the_policy_before_the_update(folder: Path) -> None:
    """The second optimiser step of an update is off-policy by the first: its ratio is to the policy before both."""
    data = batch(num_minibatches=2)
    start, stepped, both = (build(folder, old_logprobs="learner", lr=1e-2) for _ in range(3))
    alone = TrainingBatch(data.minibatches[:1], data.statistics)
    assert metric(stepped.update(training_data=alone), "ratio_max") == pytest.approx(1.0, abs=1e-6)

    def second_minibatch(learner: RAPOTorchLearner) -> torch.Tensor:
        rows = learner.rows.packed(data.minibatches[1])
        return torch.cat([learner.policy.forward_train({ROW: row})[LOGPROBS].detach() for row in rows])

    ratios = torch.exp(second_minibatch(stepped) - second_minibatch(start))
    assert ratios.max() > 1.01
    results = both.update(training_data=data)
    assert metric(results, "ratio_max") == pytest.approx(float(ratios.max()), rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [{}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "master_weights": None}],
    ids=["float32", "masters", "rounded"],
)
def test_state_round_trip_continues_bit_for_bit(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    learner = build(folder, **settings)
    learner.update(training_data=batch())
    learner.save_to_path(tmp_path / "checkpoint")
    restored = build(folder, **settings)
    for _ in range(3):  # newer than the checkpoint, and still it is restored
        restored.update(training_data=batch(count=2))
    restored.restore_from_path(tmp_path / "checkpoint")
    assert restored._weights_seq_no == 1
    state = restored.get_state()
    for _ in range(2):  # the same state twice: training changes no state that was given
        restored.set_state(state)
        restored.update(training_data=batch(count=3))
    learner.update(training_data=batch(count=3))
    assert all(torch.equal(a, b) for a, b in zip(weights(learner).values(), weights(restored).values(), strict=True))


def test_engine_weights_are_rounded_and_hold_the_tied_head(folder: Path) -> None:
    learner = build(folder)
    sent = learner.get_state(components="rl_module", inference_only=True)["rl_module"][DEFAULT_MODULE_ID]
    assert {tag for tag, _ in sent.values()} == {"bfloat16"}
    tensors, own = unpack_weights(sent), dict(learner.policy.language_model.named_parameters())
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert all(torch.equal(tensors[name], parameter.detach().bfloat16()) for name, parameter in own.items())
    # score(): a model that holds exactly what was sent agrees to float32 precision; one update later it does not
    sequences = [[4, 5, 6, 7], [9, 8]]
    learner.policy.language_model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    exact = learner.score(sequences)
    ids = torch.tensor(sequences[:1])
    log_p = torch.log_softmax(learner.policy.language_model(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
    assert [len(scores) for scores in exact] == [3, 1] and exact[0] == pytest.approx(log_p.tolist(), abs=1e-5)


def test_export_loads_in_transformers(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner = build(folder)
    learner.update(training_data=batch())
    learner.weights.export(str(tmp_path / "exported"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    for name, parameter in learner.policy.language_model.named_parameters():
        assert torch.equal(model.state_dict()[name], parameter.detach())
    assert model.config.use_cache and AutoTokenizer.from_pretrained(tmp_path / "exported").eos_token == "t2"

"""Steps of the buffer that are preferred to the policy's own: the learner's gradient is DPO's, however rows are packed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from tiny_learner import build, trajectory_groups
from tiny_models import save_tiny_model

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.metrics import UpdateMetrics
from rapo_rllib.models.loading import load_causal_lm
from rapo_rllib.settings import LoraSettings, ObjectiveSettings
from rapo_rllib.types import PreferredStep, Trajectory, TrajectoryGroup

BETA, WEIGHT = 0.5, 2.0
IMPLICIT: dict[str, Any] = {
    "step_comparison": "implicit",
    "step_comparison_weight": WEIGHT,
    "step_preference_beta": BETA,
    "importance_cap": None,
    "importance_shaping_weight": 0.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def groups_of_equals(count: int = 3) -> list[TrajectoryGroup]:
    """Groups without signal: what is learned is the preference alone. One trajectory has two preferred steps, one none."""
    groups = trajectory_groups(count)
    for group in groups:
        for member in group.trajectories:
            member.reward = 0.0
        first, second, _ = group.trajectories
        first.preferred = [PreferredStep(0, (5, 6, 7)), PreferredStep(1, (8, 9))]
        second.preferred = [PreferredStep(1, (10, 11, 12, 13))]
    return groups


def batch(groups: Sequence[TrajectoryGroup], num_minibatches: int = 1) -> TrainingBatch:
    return TrainingBatch.from_groups(groups, ObjectiveSettings(**IMPLICIT), num_minibatches)


def metric(results: dict[str, Any], name: str) -> float:
    return float(results[DEFAULT_MODULE_ID][name].peek())


def log_prob(model: Any, before: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    ids = torch.tensor([[*before, *tokens]])
    logprobs = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
    at = range(len(before) - 1, ids.shape[1] - 1)
    return sum((logprobs[i, ids[0, i + 1]] for i in at), torch.zeros(()))


def dpo_terms(model: Any, reference: Any, groups: Sequence[TrajectoryGroup]) -> list[tuple[Trajectory, torch.Tensor]]:
    """-log σ(Δ) of every pair, as the paper's equation has it, each step scored by itself."""
    found = []
    for group in groups:
        for member in group.trajectories:
            for better in member.preferred:
                step = member.steps[better.step]
                before = [*member.prompt_ids, *member.token_ids[: step.start]]
                own = member.token_ids[step.start : step.stop]
                with torch.no_grad():
                    known = log_prob(reference, before, better.token_ids) - log_prob(reference, before, own)
                margin = BETA * (log_prob(model, before, better.token_ids) - log_prob(model, before, own) - known)
                found.append((member, -torch.nn.functional.logsigmoid(margin)))
    return found


def gradient_of(learner: RAPOTorchLearner, data: TrainingBatch) -> torch.Tensor:
    (minibatch,) = learner.rows.scored(data.minibatches)
    learner._accumulated(minibatch, partial(learner._add_gradient, UpdateMetrics()))
    found = torch.cat([p.grad.flatten().double() for p in learner._trained if p.grad is not None])
    learner._drop_gradients()
    return found


@pytest.mark.parametrize("max_tokens", [30, 400])
@pytest.mark.parametrize("old_logprobs", ["learner", "rollout"])
def test_the_gradient_is_that_of_dpo(folder: Path, old_logprobs: str, max_tokens: int) -> None:
    """Also where the policy has moved away from the reference model, and where the two steps of a pair lie in two rows."""
    groups = groups_of_equals()
    learner = build(folder, **IMPLICIT, lr=3e-2, old_logprobs=old_logprobs, max_tokens_per_micro_batch=max_tokens)
    learner.update(training_data=batch(groups))
    model, reference = learner.policy.language_model, load_causal_lm(learner.settings.model).eval()
    if old_logprobs == "rollout":  # the engine's are those of the policy, as after a sync
        for group in groups:
            for member in group.trajectories:
                for step in member.steps:
                    for at in range(step.start, step.stop):
                        before = [*member.prompt_ids, *member.token_ids[:at]]
                        with torch.no_grad():
                            member.logprobs[at] = float(log_prob(model, before, member.token_ids[at : at + 1]))
    terms = dpo_terms(model, reference, groups)
    assert any(float(term.detach()) < 0.6 for _, term in terms)  # -log σ(0) = 0.693: the policy has moved
    # eq. 11's mean: over tokens of the trajectory, over the three of a group, over the groups
    weighted = [term / member.num_trained / 3 / len(groups) for member, term in terms]
    wanted = torch.autograd.grad(sum(weighted) * WEIGHT / BETA, learner._trained)
    found = gradient_of(learner, batch(groups))
    torch.testing.assert_close(found, torch.cat([g.flatten().double() for g in wanted]), rtol=2e-3, atol=2e-6)


def test_pairs_are_told_and_a_learned_preference_has_a_smaller_gradient(folder: Path) -> None:
    groups = groups_of_equals()
    learner = build(folder, **IMPLICIT, lr=1e-2)
    results = [learner.update(training_data=batch(groups)) for _ in range(12)]
    assert metric(results[0], "num_preferences") == 9
    assert metric(results[0], "preference_margin") == pytest.approx(0.0, abs=1e-5)  # it is the reference model
    assert metric(results[-1], "preference_margin") > 1 and metric(results[-1], "preferred_share") == 1
    assert metric(results[-1], "gradient_norm") < metric(results[0], "gradient_norm")


def test_it_is_added_to_the_outcomes_advantage(folder: Path) -> None:
    """The gradient of both is the sum of their gradients."""
    both, outcome = groups_of_equals(), trajectory_groups(3)
    for one, other in zip(both, outcome, strict=True):
        for member, source in zip(one.trajectories, other.trajectories, strict=True):
            member.reward = source.reward
    learner = build(folder, **IMPLICIT, old_logprobs="learner")
    parts = [gradient_of(learner, batch(groups)) for groups in (both, outcome, groups_of_equals())]
    torch.testing.assert_close(parts[0], parts[1] + parts[2], rtol=1e-4, atol=1e-6)


def test_with_lora_the_base_is_the_reference(folder: Path) -> None:
    groups = groups_of_equals()
    learner = build(folder, **IMPLICIT, lora=LoraSettings(rank=4, alpha=8), lr=1e-2)
    results = [learner.update(training_data=batch(groups)) for _ in range(12)]
    assert metric(results[0], "preference_margin") == pytest.approx(0.0, abs=1e-5)
    assert metric(results[-1], "preference_margin") > 0.1


def test_every_minibatch_has_its_own_pairs(folder: Path) -> None:
    data = batch(groups_of_equals(4), num_minibatches=2)
    learner = build(folder, **IMPLICIT, lr=1e-3)
    scored = learner.rows.scored(data.minibatches)
    assert [len(minibatch.margins) for minibatch in scored] == [6, 6]
    assert metric(learner.update(training_data=data), "num_steps") == 2

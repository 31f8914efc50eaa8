"""Our losses are TRL's where TRL has them: value, gradient of every weight, and share of clipped tokens.

The reference is ``GRPOTrainer.compute_loss`` itself, on a padded batch; ours goes the whole way from trajectories over packed
rows with shared prompts. Both run the same random model in float64. TRL's engine is hidden, since importing it takes long.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_learner import trajectory_groups
from tiny_models import save_tiny_model, tiny_model

from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.samples import SampleGroup, sample_groups
from rapo_rllib.learner.metrics import UpdateMetrics
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.objective.advantages import overlong_punishment
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import policy_loss
from rapo_rllib.settings import ModelSettings, ObjectiveSettings

ENGINE_IS_LOWER = 1.6  # nats, in the logprob of every token
LENGTH = 40  # of the response budget; the longest response is shorter
FLOAT64 = ModelSettings(dtype="float64", autocast_dtype=None)
PLAIN = {"importance_shaping_weight": 0.0, "importance_cap": None, "max_response_tokens": LENGTH}

# our settings, TRL's arguments; clip ranges are wide enough that some tokens (or responses) are clipped and others are not
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"clip_high": 0.2}, {"loss_type": "grpo"}),
    "clip_higher": ({}, {"loss_type": "grpo", "epsilon_high": 0.28}),
    "dapo": ({"loss_aggregation": "token"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo": ({"loss_aggregation": "token"}, {"loss_type": "bnpo", "epsilon_high": 0.28}),
    "dr_grpo": ({"loss_aggregation": "constant", "normalize_std": False, "clip_high": 0.2}, {"loss_type": "dr_grpo"}),
    "gspo": (
        {"importance_level": "sequence", "clip_low": 0.1, "clip_high": 0.15},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.15},
    ),
    "dual_clip": ({"dual_clip": 1.4}, {"loss_type": "grpo", "epsilon_high": 0.28, "delta": 1.4}),
    "kl": ({"kl_coeff": 0.3}, {"loss_type": "grpo", "epsilon_high": 0.28, "beta": 0.3}),
    "truncated_importance_sampling": (
        {"importance_cap": 1.35},  # π_old / π_engine is between 1.0 and 1.8 here
        {"loss_type": "grpo", "epsilon_high": 0.28, "importance_cap": 1.35},
    ),
}


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that makes TRL's trainer of a model."""
    utils = importlib.import_module("trl.import_utils")
    patch, threads = pytest.MonkeyPatch(), torch.get_num_threads()
    torch.set_num_threads(1)  # products this small only wait for each other
    patch.setattr(utils, "is_vllm_available", lambda *args, **kwargs: False)
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = tmp_path_factory.mktemp("trl")
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(folder))

    def make(model: Any, batch_size: int, *, beta: float = 0.0, importance_cap: Any = None, **arguments: Any) -> Any:
        config = GRPOConfig(
            output_dir=str(Path(folder) / "out"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            per_device_train_batch_size=batch_size,
            num_generations=3,
            max_completion_length=LENGTH,
            use_bias_correction_kl=False,  # an option of TRL's (its default) that the KL term of section 8 does not have
            **arguments,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda **columns: [0.0],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "t1"}]),
            processing_class=tokenizer,
        )
        trainer.current_gradient_accumulation_steps = 1  # train() would set it
        trainer.beta = beta  # given to it, it would load a reference model
        trainer.use_vllm = importance_cap is not None
        return trainer

    yield make
    torch.set_num_threads(threads)
    patch.undo()


def old_logprobs(rollout: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Some π_old that is neither the engine's nor the policy's; ratios to it are on both sides of 1."""
    return rollout.double() - 1.3 + 0.3 * torch.sin(tokens.double())


def reference_logprobs(tokens: torch.Tensor) -> torch.Tensor:
    return -4 + 0.5 * torch.cos(tokens.double())


def padded(groups: list[SampleGroup], cap: float | None) -> dict[str, torch.Tensor]:
    """TRL's batch: prompts padded on the left, responses on the right, observations masked."""
    samples = [(group.prompt_ids, sample) for group in groups for sample in group.samples]
    longest = max(len(prompt) for prompt, _ in samples)

    def left(values: list[np.ndarray]) -> torch.Tensor:
        return torch.tensor(np.stack([np.pad(v, (longest - len(v), 0)) for v in values]))

    def right(values: list[np.ndarray]) -> torch.Tensor:
        return torch.tensor(np.stack([np.pad(v, (0, LENGTH - len(v))) for v in values]))

    tokens = right([s.token_ids for _, s in samples]).long()
    rollout = right([s.rollout_logprobs for _, s in samples]).double()
    mask = right([s.loss_mask.astype(int) for _, s in samples])
    old = old_logprobs(rollout, tokens)
    batch = {
        "prompt_ids": left([prompt for prompt, _ in samples]).long(),
        "prompt_mask": left([np.ones(len(prompt), int) for prompt, _ in samples]),
        "completion_ids": tokens,
        "completion_mask": right([np.ones(len(s.token_ids), int) for _, s in samples]),
        "tool_mask": mask,
        "advantages": torch.tensor([float(s.advantages[0]) for _, s in samples], dtype=torch.float64),
        "old_per_token_logps": old,
        "ref_per_token_logps": reference_logprobs(tokens),
        "num_items_in_batch": mask.sum(),
    }
    if cap is not None:
        batch["importance_sampling_ratio"] = (old - rollout + ENGINE_IS_LOWER).exp().clamp(max=cap)
    return batch


def ours(model: torch.nn.Module, groups: list[SampleGroup], settings: ObjectiveSettings) -> dict[str, float]:
    """The loss over packed rows, its gradients left in the model."""
    total, metrics = 0.0, UpdateMetrics()
    for row in pack_rows(groups, 60):
        logprobs, _ = score_row(model, row, FLOAT64, 1.0)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=old_logprobs(row.rollout_logprobs, row.target_ids),
            advantages=row.advantages,
            retrieved_share=row.retrieved_share,
            weights=row.weights,
            rollout_logprobs=row.rollout_logprobs.double() - ENGINE_IS_LOWER,
            reference_logprobs=reference_logprobs(row.target_ids),
            trajectory_ids=row.trajectory_ids,
            off_policy=row.off_policy,
        )
        outputs = policy_loss(inputs, settings)
        outputs.loss.backward()
        total += float(outputs.loss.detach())
        metrics.add_row(row.num_tokens, torch.zeros(1), outputs.metrics)
    return {**metrics.reduced(Ranks(torch.device("cpu"), False), 1.0), "loss": total}


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_clipped_share_are_trls(trl: Any, name: str) -> None:
    seed = 1
    changes, arguments = CASES[name]
    settings = ObjectiveSettings(**{**PLAIN, **changes})
    groups, _ = sample_groups(trajectory_groups(3, seed=seed), settings)
    model, copy = tiny_model(seed=seed), tiny_model(seed=seed)
    result = ours(model, groups, settings)
    trainer = trl(copy, batch_size=9, **arguments)
    loss = trainer.compute_loss(copy, padded(groups, settings.importance_cap))
    loss.backward()
    assert result["loss"] == pytest.approx(float(loss.detach()), rel=1e-5, abs=1e-7)
    largest = max(float(p.grad.abs().max()) for p in copy.parameters())
    assert largest > 1e-2
    for parameter, reference in zip(model.parameters(), copy.parameters(), strict=True):  # TRL's logprobs are float32
        torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-4, atol=1e-5 * largest)
    unit = "" if settings.importance_level == "token" else "_trajectories"  # TRL counts what has one ratio
    logged = trainer._metrics["train"]
    for side in ("low", "high"):
        share = result[f"clipped_{side}{unit}"]
        assert share == pytest.approx(logged[f"clip_ratio/{side}_mean"][0], abs=1e-6)
        assert 0 < share < 1


def test_the_punishment_of_length_is_trls(trl: Any) -> None:
    from trl.rewards import get_soft_overlong_punishment

    limit, buffer = 100, 20
    theirs = get_soft_overlong_punishment(max_completion_len=limit, soft_punish_cache=buffer)
    lengths = list(range(130))
    assert [overlong_punishment(n, limit, buffer) for n in lengths] == pytest.approx(theirs([[0] * n for n in lengths]))

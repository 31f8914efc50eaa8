"""Conversion of trajectory groups into samples: token advantages, and per trajectory a retrieved share and a weight.

    TrajectoryGroup (x questions) --sample_groups--> SampleGroup (x those with signal) + statistics

All numbers that depend on more than one trajectory are computed here, over the whole batch, before the batch is cut into shards
and minibatches. So neither the number of learners nor the order of groups changes the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

import numpy as np

from rapo_rllib.batching.credit import (
    group_has_signal,
    grouped_steps,
    length_punishment,
    token_advantages,
    trajectory_advantages,
)
from rapo_rllib.batching.prefix_tree import common_length
from rapo_rllib.objective.loss import aggregation_weight
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import TRAINED_KINDS, Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class Sample:
    """One trajectory as the learner sees it, ``T`` response tokens.

    Example: response ``[5, 6, 7]`` whose token 6 is an observation, alone in its batch: ``loss_mask=[True, False, True]``,
    ``rollout_logprobs=[-0.2, 0.0, -1.1]``, ``weight=0.5`` (two loss tokens).
    """

    token_ids: np.ndarray  # [T] int32
    loss_mask: np.ndarray  # [T] bool, True = trained: written by the policy, or by the author of an off-policy trajectory
    rollout_logprobs: np.ndarray  # [T] float32, of the sampling policy (expert: 0), nats; 0 outside the mask
    advantages: np.ndarray  # [T] float32, eq. 10; by default equal for all tokens, except those that branches share
    retrieved_share: float  # F_ret, section 8
    weight: float  # weight of each loss token in the mean over the batch
    off_policy: bool = False  # written by an expert, or by earlier weights of the policy

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that the policy is trained on."""
        return int(self.loss_mask.sum())

    @property
    def counts(self) -> bool:
        """Whether any token of the sample is in the loss."""
        return self.weight != 0 and bool(self.loss_mask.any())


@dataclass(frozen=True)
class SampleGroup:
    """The samples of one question, which share its prompt of ``P`` tokens."""

    prompt_ids: np.ndarray  # [P] int32
    samples: tuple[Sample, ...]
    question_id: str = ""
    num_env_steps: int = 0  # generated steps of all its trajectories

    @cached_property
    def num_tokens(self) -> int:
        """Approximate number of tokens that the learner computes; those shared with the previous sample count once."""
        shared = sum(common_length(a.token_ids, b.token_ids) for a, b in pairwise(self.samples))
        return len(self.prompt_ids) + sum(len(sample.token_ids) for sample in self.samples) - shared

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that the policy is trained on."""
        return sum(sample.num_loss_tokens for sample in self.samples)


def sample_groups(
    groups: Sequence[TrajectoryGroup], objective: ObjectiveSettings
) -> tuple[list[SampleGroup], dict[str, float]]:
    """Build the samples of a whole batch, with advantages and weights.

    Groups without signal are counted and left out, unless the KL term (``kl_coeff > 0``) gives them a gradient. Groups without
    a token in the loss (all masked or empty) are always left out. Both still count in the mean over groups, so that a batch
    with few informative groups takes a smaller step, as in eq. 11. Only a difference in outcomes is signal: in a group of equal
    outcomes, length punishments alone would be normalised to full-size advantages.

    Returns:
        The groups, and metrics of the batch, which are about rollouts unless their name says off-policy.

    Raises:
        ValueError: the trajectories of a group have different prompts.
    """
    alive = [group for group in groups if group.members]
    trained_tokens = sum(_num_trained(t, objective) for group in alive for t in group.members)
    samples, without_signal = [], 0
    for group in alive:
        signal = group_has_signal(group, objective)
        without_signal += not signal
        if signal or objective.kl_coeff > 0:
            samples.append(_sample_group(group, objective, len(alive), trained_tokens))
    samples = [group for group in samples if any(sample.counts for sample in group.samples)]
    without_signal += len(groups) - len(alive)
    return samples, {"num_groups_without_signal": without_signal, **_statistics(groups, objective)}


def _statistics(groups: Sequence[TrajectoryGroup], objective: ObjectiveSettings) -> dict[str, float]:
    trajectories = [t for group in groups for t in group.trajectories]
    alive = [t for t in trajectories if not t.failed]
    punishments = [length_punishment(t, objective) for t in alive]
    num_steps = sum(len(t.steps) for group in groups for t in group.members)
    count = max(len(trajectories), 1)
    return {
        "num_failed_trajectories": len(trajectories) - len(alive),  # end == "error": in no other statistic, and not in the loss
        "num_off_policy_trajectories": sum(len(group.off_policy) for group in groups),
        "num_unaided_trajectories": sum(t.unaided is not None for t in alive),  # also in a form without help
        "grouped_step_share": sum(grouped_steps(group, objective) for group in groups) / max(num_steps, 1),
        "truncated_share": sum(t.end == "length" for t in alive) / count,
        "masked_share": sum(_masked(t, objective) for t in alive) / count,  # truncated, and so left out of the loss
        "overlong_share": sum(p < 0 for p in punishments) / count,
        "overlong_punishment": sum(punishments) / count,
    }


def _sample_group(group: TrajectoryGroup, objective: ObjectiveSettings, num_groups: int, total_tokens: int) -> SampleGroup:
    prompt, samples = _shared_prompt(group), []

    def weight(num_tokens: int) -> float:
        sizes = (num_tokens, len(group.members), num_groups, total_tokens)
        return aggregation_weight(*sizes, objective.loss_aggregation, objective.max_response_tokens)

    whole = trajectory_advantages(group, objective)
    for trajectory, own, as_whole in zip(group.members, token_advantages(group, objective), whole, strict=True):
        if num_tokens := _num_trained(trajectory, objective):
            samples.append(_sample(trajectory, own, weight(num_tokens), len(prompt)))
            for other in trajectory.others:
                advantages = np.full(len(other.token_ids), as_whole, dtype=np.float32)
                samples.append(_sample(other, advantages, weight(num_tokens), len(prompt)))
            unaided = trajectory.unaided
            if unaided is not None and as_whole > 0:  # a failure with help does not show what to avoid without help
                advantages = np.full(len(unaided.token_ids), as_whole, dtype=np.float32)
                samples.append(_sample(unaided, advantages, weight(unaided.num_trained)))
    return SampleGroup(
        prompt_ids=np.array(prompt, dtype=np.int32),
        samples=tuple(samples),
        question_id=group.question.id,
        num_env_steps=sum(len(one.steps) for t in group.counted for one in t.sequences),
    )


def _shared_prompt(group: TrajectoryGroup) -> list[int]:
    """Find the prompt of all members; for agents, which make their own prompts, the longest common prefix."""
    prompts = [list(one.prompt_ids) for t in group.members for one in t.sequences if one.num_trained]
    shared = prompts[0] if prompts else []
    if any(prompt != shared for prompt in prompts):
        if not any(t.own_prompt for t in group.members):
            raise ValueError(f"the trajectories of question {group.question.id!r} have different prompts")
        shared = [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))]
    return shared


def _masked(trajectory: Trajectory, objective: ObjectiveSettings) -> bool:
    """Return whether overlong filtering takes a trajectory's tokens out of the loss; its group's baseline keeps its reward."""
    return objective.mask_truncated and trajectory.end == "length"


def _num_trained(trajectory: Trajectory, objective: ObjectiveSettings) -> int:
    return 0 if _masked(trajectory, objective) else sum(one.num_trained for one in trajectory.sequences)


def _sample(trajectory: Trajectory, advantages: np.ndarray, weight: float, shared: int | None = None) -> Sample:
    """Build a sample of one sequence. It begins with the prompt's tokens after the first ``shared``; None: without them."""
    own_prompt = [] if shared is None else trajectory.prompt_ids[shared:]
    before = np.zeros(len(own_prompt), dtype=np.float32)
    mask = np.concatenate([before > 0, np.isin(np.array(trajectory.kinds), TRAINED_KINDS)])
    logprobs = np.concatenate([before, np.array(trajectory.logprobs, dtype=np.float32)])
    return Sample(
        token_ids=np.array([*own_prompt, *trajectory.token_ids], dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, logprobs, np.float32(0)),
        advantages=np.concatenate([before, advantages]),
        retrieved_share=trajectory.retrieved_share,
        weight=weight,
        off_policy=trajectory.off_policy,
    )

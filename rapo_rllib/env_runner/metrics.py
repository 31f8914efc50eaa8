"""Metrics of a rollout, computed from its groups and counters. Keys are ``name`` or ``part/name``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.batching.credit import group_has_signal, members_without_signal
from rapo_rllib.errors import RolloutError, error_kind
from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.objective.retrieval_reward import (
    PAPER,
    measured_retrievals,
    trajectory_retrieval_reward,
    unaided_retrieval_reward,
)
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import FALLBACK, Retrieval, TokenKind, Trajectory, TrajectoryGroup


def effect_metrics(trajectories: Sequence[Trajectory], objective: ObjectiveSettings) -> dict[str, float]:
    """Measure the effect of retrieval. Keys that end in ``_count`` are counts; the others are means, 0 if there are no values.

    Trajectories that retrieved are compared with others whose first step called a tool, after which a retrieval is possible.
    """
    counted = [t for t in trajectories if not t.failed]
    retrieved = [t for t in counted if t.retrievals]
    whole = [t for t in counted if not t.given and t.end != "step"]  # neither begun after an expert's steps nor a single step
    others = [t for t in whole if not t.retrievals and t.steps and t.steps[0].tool is not None]
    shown = [(t, r) for t in counted for r in t.own_retrievals if r.source != FALLBACK]
    answers = [(t, r) for t, r in shown if r.answer]
    wrong = [(t, r) for t, r in answers if not r.shows_answer]
    begun_right = [[t for t in those if t.steps and t.steps[0].right] for those in (retrieved, others)]
    return {
        "retrieved_count": float(len(retrieved)),
        "accuracy_retrieved": mean(t.correct for t in retrieved),
        "others_count": float(len(others)),
        "accuracy_others": mean(t.correct for t in others),
        "right_step_retrieved_count": float(len(begun_right[0])),
        "accuracy_right_step_retrieved": mean(t.correct for t in begun_right[0]),
        "right_step_others_count": float(len(begun_right[1])),
        "accuracy_right_step_others": mean(t.correct for t in begun_right[1]),
        "own_question": mean(r.own_question for _, r in shown),
        "shows_answer": mean(r.shows_answer for _, r in shown),
        "answers_count": float(len(answers)),
        "answers_copied": mean(_copied(t, r) for t, r in answers),
        "wrong_answers_count": float(len(wrong)),
        "wrong_answers_copied": mean(_copied(t, r) for t, r in wrong),
        "retrieval_reward_baseline": mean(z for t in others if (z := unaided_retrieval_reward(t, objective)) is not None),
    }


def _copied(trajectory: Trajectory, retrieval: Retrieval) -> bool:
    """Check whether the trajectory gives the same answer as the step trace."""
    return _plain(trajectory.predicted) == _plain(retrieval.answer)


def _plain(answer: str) -> str:
    return " ".join(answer.casefold().split())


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of nothing."""
    listed = [float(value) for value in values]
    return sum(listed) / len(listed) if listed else 0.0


@dataclass
class SampleResult:
    """The result of a sampling phase: complete groups, and for each env runner its counters and its callbacks' metrics."""

    groups: list[TrajectoryGroup] = field(default_factory=list)
    stats: list[RolloutStats] = field(default_factory=list)
    logged: list[Any] = field(default_factory=list)  # reduced RLlib metrics
    retrieval_prob: float = 0.0  # with which the groups were sampled; its schedule may have moved since
    groups_dropped: int = 0  # by dynamic sampling
    groups_stale: int = 0  # dropped because they had become too old (max_staleness)
    questions_again: int = 0  # asked again, because their engine was lost
    env_runners_lost: int = 0
    groups_under_way: int = 0  # when the batch was taken
    left_out: list[TrajectoryGroup] = field(default_factory=list)  # dropped groups that are not in ``groups``
    values: dict[str, float] = field(default_factory=dict)  # metrics of given starts, single steps, unaided success

    def extend(self, other: SampleResult) -> None:
        """Add the groups, counters and logged metrics of another result."""
        self.groups += other.groups
        self.stats += other.stats
        self.logged += other.logged

    def require_usable(self) -> None:
        """Raise ``RolloutError`` with the most frequent cause if all trajectories that could begin have failed."""
        begun = [t for t in self.trajectories if not t.start_refused]  # a refused start is another one next time
        errors = [t.error for t in begun if t.failed]
        if not errors or len(errors) < len(begun):
            return
        ((kind, count),) = Counter(map(error_kind, errors)).most_common(1)
        example = next(error for error in errors if error_kind(error) == kind)
        raise RolloutError(
            f"all {len(errors)} trajectories of {len(self.groups)} questions failed, {count} of them with: {example}. "
            "Nothing can be learned from them; the log has each with its question and step"
        )

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trajectories of all groups."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def num_policy_tokens(self) -> int:
        """Tokens that the policy generated; tokens that branches share count once."""
        return sum(t.num_generated for t in self.trajectories)

    @property
    def num_env_steps(self) -> int:
        """Generated steps; steps that branches share count once."""
        return sum(len(t.own_steps) for t in self.trajectories)


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute the statistics of episodes under the names of RLlib's own env runners, and accuracy and format rate."""
    returns = [t.reward for t in trajectories]
    return {
        "accuracy": mean(t.correct for t in trajectories),
        "format_rate": mean(t.format_ok for t in trajectories),
        "episode_return_mean": mean(returns),
        "episode_return_min": min(returns),
        "episode_return_max": max(returns),
        "episode_len_mean": mean(len(t.steps) for t in trajectories),
        "episode_duration_sec_mean": mean(t.seconds for t in trajectories),
    }


def staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Measure staleness: the updates between the weights that sampled a policy token and the weights that train on it.

    Args:
        trajectories: of a batch.
        version: of the weights when the update on this batch began.
    """
    tokens, swapped = Counter[int](), 0
    for trajectory in trajectories:
        own = zip(trajectory.token_versions, trajectory.kinds, strict=True)
        behind = Counter(version - of for of, kind in own if kind == TokenKind.POLICY)
        tokens += behind
        swapped += len(behind) > 1
    return {
        "staleness_mean": sum(behind * count for behind, count in tokens.items()) / max(tokens.total(), 1),
        "staleness_max": float(max(tokens, default=0)),
        "swapped_share": swapped / max(len(trajectories), 1),
    }


def rollout_metrics(result: SampleResult, objective: ObjectiveSettings = PAPER) -> dict[str, float]:
    """Compute the means, counts and times of one sampling phase.

    ``retrieval_reward`` and the entropies around retrievals are computed as ``objective`` uses them in training; ``entropy``
    always takes the mean over the tokens of a step.
    """
    trajectories = result.trajectories
    values = {
        "accuracy": mean(t.correct for t in trajectories),
        "format_rate": mean(t.format_ok for t in trajectories),
        "eos_rate": mean(t.turn_ended for t in trajectories),
        "episode_return_mean": mean(t.reward for t in trajectories),
        "episode_len_mean": mean(len(t.steps) for t in trajectories),
        "sequences_per_trajectory": mean(len(t.sequences) for t in trajectories),
        "entropy": mean(_step_entropies(trajectories)),
        "groups": float(len(result.groups)),
        "retrieval_prob": result.retrieval_prob,
        "groups_without_signal": float(sum(not group_has_signal(group, objective) for group in result.groups)),
        "members_without_signal": float(sum(members_without_signal(group, objective) for group in result.groups)),
        **_reward_metrics(trajectories),
        **_token_metrics(trajectories),
        **_retrieval_metrics(trajectories, result.stats, objective),
        **_tool_metrics(trajectories, result.stats),
        **_engine_metrics(result.stats),
    }
    for reason, count in _total(s.ends for s in result.stats).items():
        values[f"ends/{reason}"] = float(count)
    values |= {f"deadlines/{name}": float(count) for name, count in _total(s.deadlines for s in result.stats).items()}
    slowest = max((s.seconds for s in result.stats), default=0.0)
    values["rollout_s"] = slowest
    values["idle_s"] = mean(s.idle_s for s in result.stats)
    values["tokens_per_s"] = result.num_policy_tokens / slowest if slowest else 0.0
    return values


def _step_entropies(trajectories: Sequence[Trajectory]) -> Iterator[float]:
    """Yield the entropy of every generated step; steps that branches share count once."""
    for trajectory in trajectories:
        for index, step in enumerate(trajectory.steps):
            if step.start >= trajectory.own_start:
                yield step_entropy(trajectory.step_entropies(index))


def _reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Compute means of reward terms (over trajectories that have any) and of reward before the end; count scorer failures."""
    named = [t.reward_terms for t in trajectories if t.reward_terms]
    names = dict.fromkeys(name for terms in named for name in terms)
    values = {f"reward/{name}": mean(terms.get(name, 0.0) for terms in named) for name in names}
    failures = Counter(t.score_failure for t in trajectories if t.score_failure)
    before_the_end = mean(math.fsum(t.step_rewards[:-1]) for t in trajectories)
    failed = {f"reward/failures/{reason}": float(count) for reason, count in failures.items()}
    return {**values, "reward_before_end": before_the_end, **failed}


def _token_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    names = {kind: kind.name.lower() for kind in TokenKind if kind != TokenKind.EXPERT}
    sequences = [one for t in trajectories for one in t.sequences]
    counts = {f"tokens/{name}": float(sum(one.num_tokens(kind) for one in sequences)) for kind, name in names.items()}
    return {
        **counts,
        "tokens/response": float(sum(len(one.token_ids) for one in sequences)),  # the sum of the counts above
        "tokens/generated": float(sum(t.num_generated for t in trajectories)),  # shared tokens of branches count once
        "tokens/prompt": float(sum(len(one.prompt_ids) for one in sequences)),
    }


def _engine_metrics(stats: Sequence[RolloutStats]) -> dict[str, float]:
    requested = sum(s.requested_tokens for s in stats)
    return {
        "prefix_cache_share": sum(s.cached_tokens for s in stats) / max(requested, 1),
        "tokens/discarded": float(sum(s.discarded_tokens for s in stats)),
        "branching/forks": float(sum(s.forks for s in stats)),
        "branching/refilled": float(sum(s.refilled for s in stats)),
    }


def _retrieval_metrics(
    trajectories: Sequence[Trajectory], stats: Sequence[RolloutStats], objective: ObjectiveSettings
) -> dict[str, float]:
    retrievals = [r for t in trajectories for r in t.own_retrievals]
    trajectory_s = sum(s.trajectory_s for s in stats)
    found = [r for r in retrievals if not r.noisy and r.source != FALLBACK]
    pairs = [pair for t in trajectories for _, pair in measured_retrievals(t, objective)]
    hybrid = [t for t in trajectories if t.retrievals]
    values = {
        "per_trajectory": len(retrievals) / max(len(trajectories), 1),
        "count": float(len(retrievals)),
        "hybrid_share": len(hybrid) / max(len(trajectories), 1),
        "retrieved_share": mean(t.retrieved_share for t in hybrid),
        "retrieval_reward": mean(trajectory_retrieval_reward(t, objective) for t in hybrid),
        "entropy_before": mean(before for before, _ in pairs),
        "entropy_after": mean(after for _, after in pairs),
        "similarity": mean(r.similarity for r in found),
        "noisy": float(sum(r.noisy for r in retrievals)),
        "fallback": float(sum(r.source == FALLBACK for r in retrievals)),
        "accuracy_hybrid": mean(t.correct for t in hybrid),
        "queries": float(sum(s.retrieval_queries for s in stats)),
        "failures": float(sum(s.retrieval_failures for s in stats)),
        "empty": float(sum(s.retrieval_empty for s in stats)),
        "skipped": float(sum(s.retrieval_skipped for s in stats)),
        "seconds": float(sum(s.retrieval_s for s in stats)),
        **effect_metrics(trajectories, objective),
        "wait_share": sum(s.retrieval_wait_s for s in stats) / trajectory_s if trajectory_s else 0.0,
    }
    return {f"retrieval/{name}": value for name, value in values.items()}


def _tool_metrics(trajectories: Sequence[Trajectory], stats: Sequence[RolloutStats]) -> dict[str, float]:
    calls = _total(s.tool_calls for s in stats)
    values = {f"tools/{name}/calls": float(count) for name, count in calls.items()}
    values |= {f"tools/{name}": float(count) for name, count in _total(s.tool_failures for s in stats).items()}
    values["tools/calls_per_trajectory"] = sum(calls.values()) / max(len(trajectories), 1)
    values["tools/seconds"] = float(sum(s.tool_s for s in stats))
    return values


def _total(counters: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter())

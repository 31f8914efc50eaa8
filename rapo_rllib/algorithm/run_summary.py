"""The numbers of ``summary.json``, kept while a run goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rapo_rllib.env_runner.metrics import SampleResult


@dataclass
class RunSummary:
    """Accuracy before and after training, and totals over the whole training, also across restores."""

    accuracy_before: float | None = None
    accuracy_after: float | None = None
    accuracy_best: float | None = None
    evaluations: int = 0
    evaluated_questions: int = 0
    policy_tokens: int = 0
    rollout_s: float = 0.0
    retrievals: int = 0
    evaluation_s: float = 0.0  # of the last evaluation
    slowest_iteration_s: float = 0.0
    last_end_s: float | None = None

    @property
    def evaluated(self) -> bool:
        """Whether the initial policy has been evaluated."""
        return self.evaluations > 0 or self.accuracy_before is not None

    def take_evaluation(self, evaluated: Mapping[str, Any]) -> None:
        """Record an evaluation: 'before' is the initial policy's, 'after' the latest, 'best' the highest; it may lack any."""
        self.evaluations += 1
        self.evaluated_questions = int(evaluated.get("num_episodes", 0))
        if "accuracy" not in evaluated:
            return
        self.accuracy_after = float(evaluated["accuracy"])
        if self.accuracy_before is None and not self.policy_tokens:  # nothing sampled, so nothing trained
            self.accuracy_before = self.accuracy_after
        known = (self.accuracy_best, self.accuracy_before, self.accuracy_after)
        self.accuracy_best = max(accuracy for accuracy in known if accuracy is not None)

    def count(self, result: SampleResult, rollout_s: float) -> None:
        """Add one sampling phase."""
        self.policy_tokens += result.num_policy_tokens
        self.rollout_s += rollout_s
        self.retrievals += sum(len(t.own_retrievals) for t in result.trajectories)

    def end_iteration(self, seconds: float) -> None:
        """Note that an iteration ended, ``seconds`` after the start."""
        if self.last_end_s is not None:
            self.slowest_iteration_s = max(self.slowest_iteration_s, seconds - self.last_end_s)
        self.last_end_s = seconds

    @property
    def expected_end_s(self) -> float:
        """Expected end of one more iteration and a last evaluation, in seconds after the start."""
        return (self.last_end_s or 0.0) + self.slowest_iteration_s + self.evaluation_s

    def as_dict(self, seconds: float) -> dict[str, Any]:
        """Return the numbers of ``summary.json``, without the checkpoint."""
        return {
            "accuracy_before": self.accuracy_before,
            "accuracy_after": self.accuracy_after,
            "accuracy_best": self.accuracy_best,
            "evaluated_questions": self.evaluated_questions,
            "seconds": seconds,
            "tokens_per_s": self.policy_tokens / self.rollout_s if self.rollout_s else 0.0,
            "retrievals": self.retrievals,
        }

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return asdict(self)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint; times since the start begin anew."""
        for name, value in state.items():
            setattr(self, name, value)
        self.last_end_s = None

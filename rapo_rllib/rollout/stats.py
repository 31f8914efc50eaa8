"""Counters and times of one ``RolloutLoop.run`` or one ``RolloutStream``: every event of a trajectory is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from rapo_rllib.types import Trajectory


@dataclass
class RolloutStats:
    """Counts and times of all trajectories of one run. Seconds are wall time; ``tool_s`` is summed over parallel calls."""

    seconds: float = 0.0
    retrieval_s: float = 0.0
    tool_s: float = 0.0
    idle_s: float = 0.0  # the engine had nothing to do: everyone waited for a tool or for retrieval
    retrieval_wait_s: float = 0.0  # summed over trajectories: from asking for a step trace to having an answer
    trajectory_s: float = 0.0  # summed over trajectories: from their start to their end
    prompt_tokens: int = 0
    requested_tokens: int = 0  # tokens that the engine was asked to continue, over all requests
    cached_tokens: int = 0  # those of ``requested_tokens`` that were in the prefix cache
    forks: int = 0  # trajectories that branched off another one
    refilled: int = 0  # trajectories started because all others of their group had ended within the budget
    discarded_tokens: int = 0  # tokens that the policy generated in groups that were given up
    retrieval_queries: int = 0
    retrieval_failures: int = 0  # the buffer did not answer; their trajectories went on without a step trace
    retrieval_empty: int = 0  # nothing suitable was found
    retrieval_skipped: int = 0  # the step trace would have exceeded the response budget
    ends: Counter[str] = field(default_factory=Counter)
    tool_calls: Counter[str] = field(default_factory=Counter)
    tool_failures: Counter[str] = field(default_factory=Counter)  # "python/timeout" -> count
    deadlines: Counter[str] = field(default_factory=Counter)  # missed deadlines, by the late call: "step", "agent"

    def add(self, trajectory: Trajectory) -> None:
        """Count an ended trajectory, each event once: the steps that a branch took over count for its origin only."""
        self.ends[trajectory.end] += 1
        self.prompt_tokens += len(trajectory.prompt_ids)
        self.trajectory_s += trajectory.seconds
        self._add_calls(trajectory)

    def add_given_up(self, trajectory: Trajectory) -> None:
        """Count a trajectory of a group that became too old before it was complete."""
        self.discarded_tokens += trajectory.num_generated
        self._add_calls(trajectory)

    def take(self) -> RolloutStats:
        """Return the counts since the last call and reset them, also for other holders of this object."""
        taken = replace(self)
        self.__dict__.update(vars(RolloutStats()))
        return taken

    def add_stats(self, other: RolloutStats) -> None:
        """Add the counts of a later time on the same engine."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def _add_calls(self, trajectory: Trajectory) -> None:
        for step in trajectory.own_steps:
            for use in step.uses:
                self.tool_calls[use.tool] += 1
                self.tool_s += use.seconds
                if use.error:
                    self.tool_failures[f"{use.tool}/{use.error}"] += 1

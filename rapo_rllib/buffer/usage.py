"""Count how often each step trace was shown, and how it fared: for ``rllib buffer stats`` and the limit of grown traces.

    RAPO (driver) --UsageRecord.add after every rollout--> totals of this run --write--> <collection>_usage --all--> stats

A run writes its own totals, under its own name. So two runs on one buffer do not lose each other's counts, and a run that goes
on from a checkpoint writes over what it had counted since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rapo_rllib.milvus.notes import SideRows
from rapo_rllib.milvus.schema import Field

PRIOR_USES = 4.0  # uses of reward 0 that every trace begins with, so that a single use decides little


@dataclass(frozen=True)
class TraceUsage:
    """Uses of a step trace and the mean of their retrieval rewards (eq. 7, nats); of uses that have one."""

    uses: int = 0
    mean_reward: float = 0.0

    @property
    def shrunk_reward(self) -> float:
        """The mean, drawn towards 0 where uses are few: ``uses · mean / (uses + 4)``."""
        return self.uses * self.mean_reward / (self.uses + PRIOR_USES)

    def __add__(self, other: TraceUsage) -> TraceUsage:
        uses = self.uses + other.uses
        total = self.uses * self.mean_reward + other.uses * other.mean_reward
        return TraceUsage(uses, total / uses if uses else 0.0)


NEVER = TraceUsage()


class Usage(SideRows):
    """The usage of one collection's step traces, of all runs."""

    kind = "usage"
    fields = (Field("id", max_bytes=1024), Field("trace_id", max_bytes=256), Field("uses", "INT64"), Field("total", "DOUBLE"))

    def all(self) -> dict[str, TraceUsage]:
        """By trace id, over all runs; traces that were never shown are missing."""
        totals: dict[str, TraceUsage] = {}
        if not self._milvus.exists(self._collection):
            return totals
        for page in self._milvus.pages(self._collection, ["trace_id", "uses", "total"]):
            for row in page:
                usage = TraceUsage(row["uses"], row["total"] / max(row["uses"], 1))
                totals[row["trace_id"]] = totals.get(row["trace_id"], NEVER) + usage
        return totals

    def write(self, run: str, usage: Mapping[str, TraceUsage]) -> None:
        """Store a run's totals so far, in place of those that it stored before for the same traces."""
        rows = [
            {"id": f"{trace_id}/{run}", "trace_id": trace_id, "uses": each.uses, "total": each.uses * each.mean_reward}
            for trace_id, each in usage.items()
        ]
        self._write(rows)


class UsageRecord:
    """One run's totals, in memory; the driver's."""

    def __init__(self) -> None:
        self.totals: dict[str, TraceUsage] = {}
        self._unwritten: set[str] = set()

    def add(self, rewards: Iterable[tuple[str, float]]) -> int:
        """Count uses, each a trace id and its retrieval reward; returns how many."""
        count = 0
        for trace_id, reward in rewards:
            self.totals[trace_id] = self.totals.get(trace_id, NEVER) + TraceUsage(1, reward)
            self._unwritten.add(trace_id)
            count += 1
        return count

    def write(self, usage: Usage, run: str) -> None:
        """Store what changed since the last time that this succeeded."""
        if self._unwritten:
            usage.write(run, {trace_id: self.totals.get(trace_id, NEVER) for trace_id in self._unwritten})
            self._unwritten = set()

    def get_state(self) -> dict[str, tuple[int, float]]:
        """For checkpoints."""
        return {trace_id: (each.uses, each.mean_reward) for trace_id, each in self.totals.items()}

    def set_state(self, state: Mapping[str, tuple[int, float]]) -> None:
        """From a checkpoint; what was counted since is written over."""
        restored = {trace_id: TraceUsage(*each) for trace_id, each in state.items()}
        self._unwritten |= set(self.totals) | set(restored)
        self.totals = restored

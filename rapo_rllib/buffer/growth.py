"""Growth of the buffer by the policy's own good steps during training: which steps enter, how many, and which leave.

    groups of a rollout --grown_candidates--> StepTraces --GrownTraces.add--> those that are new, those that leave

These traces have a collection of their run alone (``algorithm/buffer_growth.py``), beside the off-policy agents' collection,
which other runs share and which therefore is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rapo_rllib.buffer.build import cut
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Question, StepTrace, Trajectory, TrajectoryGroup

POLICY = "policy"  # source of such traces


def grown_candidates(
    groups: Sequence[TrajectoryGroup], growth: str, protocol: ProtocolSettings, level: str = "step"
) -> list[StepTrace]:
    """Choose the step traces that may enter the buffer.

        successful: of trajectories that are correct and ended by themselves
        advantage:  of trajectories with a positive reward above their group's mean, which ended by themselves

    Left out are steps whose tool call failed, whole trajectories with such a step, and steps that a branch took over
    from its sibling.

    Args:
        groups: of one rollout.
        growth: one of ``GROWTHS``.
        protocol: how observations are rendered.
        level: ``step``: one trace per step; ``trajectory``: one trace of all steps (``retrieval_level``).
    """
    if growth == "none":
        return []
    found = []
    for group in (group for group in groups if not group.question.expected):
        mean = math.fsum(group.rewards) / max(len(group.rewards), 1)
        for trajectory in group.trajectories:
            good = trajectory.correct if growth == "successful" else trajectory.reward > max(mean, 0.0)
            if good and trajectory.end not in ("error", "length"):
                found += _step_traces(trajectory, protocol, level)
    return found


def _step_traces(trajectory: Trajectory, protocol: ProtocolSettings, level: str) -> list[StepTrace]:
    texts = [
        step.as_text + (render_observation(step.observation, protocol) if step.observation else "") for step in trajectory.steps
    ]
    question = Question(trajectory.question_id, trajectory.question_text)
    whole = ExpertTrajectory(question, (*trajectory.given, *texts), trajectory.reward, POLICY)
    traces = [replace(trace, weight_version=trajectory.policy_version) for trace in cut(whole, level)]
    if level == "trajectory":
        return [] if trajectory.own_start or any(step.tool_error for step in trajectory.steps) else traces
    return [
        trace
        for trace, step in zip(traces[len(trajectory.given) :], trajectory.steps, strict=True)
        if step.start >= trajectory.own_start and not step.tool_error and trace.text.strip()
    ]


class GrownTraces:
    """The policy's traces that are kept: deduplicated, at most ``max_traces`` of them. In memory, without Milvus.

    Traces of a question whose texts differ only in case and white space count as one. The first is kept, with the latest weight
    version that wrote it and the best reward of all, so that it does not age as long as the policy goes on writing it.
    """

    def __init__(self, max_traces: int) -> None:
        self._max_traces = max_traces
        self.traces: dict[str, StepTrace] = {}  # by id
        self._by_content: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self.traces)

    def add(self, candidates: Iterable[StepTrace]) -> dict[str, int]:
        """Add candidates; above ``max_traces``, remove the traces of the oldest weight version first, by rising reward.

        Returns the numbers of added traces, removed traces and duplicates.
        """
        before, duplicates = set(self.traces), 0
        for candidate in candidates:
            kept = self._by_content.setdefault(_content(candidate), candidate.id)
            known = self.traces.get(kept)
            duplicates += known is not None
            self.traces[kept] = candidate if known is None else _written_again(known, candidate)
        self._shrink()
        after = set(self.traces)
        return {"added": len(after - before), "removed": len(before - after), "duplicates": duplicates}

    def _shrink(self) -> None:
        excess = max(len(self.traces) - self._max_traces, 0)
        for trace in sorted(self.traces.values(), key=lambda one: (one.weight_version, one.reward, one.id))[:excess]:
            del self.traces[trace.id], self._by_content[_content(trace)]

    def get_state(self) -> list[StepTrace]:
        """Return the traces, for a checkpoint."""
        return list(self.traces.values())

    def set_state(self, state: Iterable[StepTrace]) -> None:
        """Take over the traces of a checkpoint."""
        self.traces = {trace.id: trace for trace in state}
        self._by_content = {_content(trace): trace.id for trace in self.traces.values()}


def _written_again(known: StepTrace, again: StepTrace) -> StepTrace:
    reward, version = max(known.reward, again.reward), max(known.weight_version, again.weight_version)
    return replace(known, reward=reward, weight_version=version)


def _content(trace: StepTrace) -> tuple[str, str]:
    return trace.question, " ".join(trace.text.casefold().split())

"""The policy's own good steps enter the buffer during training: which, how many, and which leave.

    groups of a rollout --grown_candidates--> StepTraces --GrownTraces.add--> those that are new, those that leave

They live in a collection of their own run (``algorithm/buffer_growth.py``), beside the off-policy agents' one: that one is
shared with other runs, and stays as it is.
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
    """Return step traces of the rollouts that are good enough.

        successful: of trajectories that are correct and ended by themselves
        advantage:  of trajectories with a positive reward above their group's mean, which ended by themselves

    A step whose tool call failed is no example, and neither is what a branch took over (it is its sibling's).

    Args:
        groups: of one rollout.
        growth: one of ``GROWTHS``.
        protocol: how observations are rendered.
        level: ``trajectory``: one trace of all steps, as ``retrieval_level`` asks for.
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
        return traces if not trajectory.own_start else []
    return [
        trace
        for trace, step in zip(traces[len(trajectory.given) :], trajectory.steps, strict=True)
        if step.start >= trajectory.own_start and not step.tool_error and trace.text.strip()
    ]


class GrownTraces:
    """The policy's traces that are kept: deduplicated, at most ``max_traces`` of them. In memory, without Milvus.

    Two traces of one question whose texts are the same but for case and white space are one: the first, with the latest weight
    version that wrote it and the best reward that it earned. So it does not age as long as the policy goes on writing it.
    """

    def __init__(self, max_traces: int) -> None:
        self._max_traces = max_traces
        self.traces: dict[str, StepTrace] = {}  # by id
        self._by_content: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self.traces)

    def add(self, candidates: Iterable[StepTrace]) -> dict[str, int]:
        """Take candidates in; above ``max_traces`` the oldest leave, of those of one weight version those of lowest reward.

        Returns how many are added, removed and duplicates.
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
        """Return what checkpoints keep."""
        return list(self.traces.values())

    def set_state(self, state: Iterable[StepTrace]) -> None:
        """Go on from a checkpoint."""
        self.traces = {trace.id: trace for trace in state}
        self._by_content = {_content(trace): trace.id for trace in self.traces.values()}


def _written_again(known: StepTrace, again: StepTrace) -> StepTrace:
    reward, version = max(known.reward, again.reward), max(known.weight_version, again.weight_version)
    return replace(known, reward=reward, weight_version=version)


def _content(trace: StepTrace) -> tuple[str, str]:
    return trace.question, " ".join(trace.text.casefold().split())

"""Trajectories as JSON lines, for people and for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.objective.retrieval_reward import PAPER, trajectory_retrieval_reward
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup


def transcript(question: Question, trajectory: Trajectory, objective: ObjectiveSettings = PAPER) -> dict[str, Any]:
    """One trajectory: its text, who wrote which tokens, and what came of it; entropies and reward as ``objective`` has them."""
    how = (objective.step_entropy_tokens, objective.step_entropy_reduction)
    steps = [
        {**asdict(step), "entropy": step_entropy(trajectory.step_entropies(index), *how)}
        for index, step in enumerate(trajectory.steps)
    ]
    return {
        "question_id": question.id,
        "question": question.text,
        "gold": question.answer,
        "text": trajectory.text,
        "reward": trajectory.reward,
        "reward_terms": trajectory.reward_terms,
        "correct": trajectory.correct,
        "format_ok": trajectory.format_ok,
        "end": trajectory.end,
        "error": trajectory.error,
        "hybrid": trajectory.hybrid,
        "segments": [list(segment) for segment in trajectory.segments],
        "policy_version": trajectory.policy_version,
        "retrieved_share": trajectory.retrieved_share,
        "retrieval_reward": trajectory_retrieval_reward(trajectory, objective),
        "steps": steps,
        "retrievals": [asdict(retrieval) for retrieval in trajectory.retrievals],
        "token_ids": list(trajectory.token_ids),
        "kinds": [int(kind) for kind in trajectory.kinds],
        "entropies": [round(entropy, 3) for entropy in trajectory.entropies],  # [T] nats; 0 where the policy did not write
    }


def write_transcripts(
    folder: str,
    name: str,
    groups: Sequence[TrajectoryGroup],
    filesystem: Any = None,
    objective: ObjectiveSettings = PAPER,
) -> None:
    """Write one line per trajectory to ``folder/name``; the file appears whole or not at all.

    Each line is a :func:`transcript` with ``group``, the place of its group in the batch. Readers take what they know and pass
    over the rest: files of earlier versions have neither ``group`` nor ``entropies``.

    Args:
        folder: made if it is missing.
        name: of the file.
        groups: what was sampled.
        filesystem: a ``pyarrow.fs.FileSystem``, as Tune stores trials on; None: this machine's.
        objective: what was trained with.
    """
    from pyarrow.fs import LocalFileSystem

    filesystem = filesystem or LocalFileSystem()
    filesystem.create_dir(folder, recursive=True)
    rows = [
        {"group": index, **transcript(group.question, t, objective)}
        for index, group in enumerate(groups)
        for t in group.trajectories
    ]
    path = f"{folder}/{name}"
    with filesystem.open_output_stream(f"{path}.partial") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "backslashreplace"))
    filesystem.move(f"{path}.partial", path)

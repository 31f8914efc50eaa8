"""Trajectories as JSON lines, for people and for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.objective.retrieval_reward import trajectory_retrieval_reward
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup


def transcript(question: Question, trajectory: Trajectory) -> dict[str, Any]:
    """One trajectory: its text, who wrote which tokens, and what came of it."""
    steps = [
        {**asdict(step), "entropy": step_entropy(trajectory.step_entropies(index))}
        for index, step in enumerate(trajectory.steps)
    ]
    return {
        "question_id": question.id,
        "question": question.text,
        "gold": question.answer,
        "text": trajectory.text,
        "reward": trajectory.reward,
        "correct": trajectory.correct,
        "format_ok": trajectory.format_ok,
        "end": trajectory.end,
        "error": trajectory.error,
        "hybrid": trajectory.hybrid,
        "policy_version": trajectory.policy_version,
        "retrieved_share": trajectory.retrieved_share,
        "retrieval_reward": trajectory_retrieval_reward(trajectory),
        "steps": steps,
        "retrievals": [asdict(retrieval) for retrieval in trajectory.retrievals],
        "token_ids": list(trajectory.token_ids),
        "kinds": [int(kind) for kind in trajectory.kinds],
    }


def write_transcripts(folder: str, name: str, groups: Sequence[TrajectoryGroup], filesystem: Any = None) -> None:
    """Write one line per trajectory to ``folder/name``; the file appears whole or not at all.

    Args:
        folder: made if it is missing.
        name: of the file.
        groups: what was sampled.
        filesystem: a ``pyarrow.fs.FileSystem``, as Tune stores trials on; None: this machine's.
    """
    from pyarrow.fs import LocalFileSystem

    filesystem = filesystem or LocalFileSystem()
    filesystem.create_dir(folder, recursive=True)
    lines = [json.dumps(transcript(group.question, t), ensure_ascii=False) for group in groups for t in group.trajectories]
    path = f"{folder}/{name}"
    with filesystem.open_output_stream(f"{path}.partial") as file:
        file.write("".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace"))
    filesystem.move(f"{path}.partial", path)

"""Trajectories as JSON lines, for people and for other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rapo_rllib.batching.credit import trajectory_advantages
from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.objective.retrieval_reward import PAPER, trajectory_retrieval_reward
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

HELD_OUT = "held_out"  # folder of a trial: the trajectories of each evaluation
_NAME = re.compile(r"iteration_(\d{5,})\.jsonl(\.partial)?")  # .partial: left by a process that was killed


def transcript(question: Question, trajectory: Trajectory, objective: ObjectiveSettings = PAPER) -> dict[str, Any]:
    """Return a trajectory's transcript: text, token authors, outcome, and by ``objective`` entropies and retrieval reward."""
    how = (objective.step_entropy_tokens, objective.step_entropy_reduction)
    steps = [
        {**asdict(step), "entropy": step_entropy(trajectory.step_entropies(index), *how)}
        for index, step in enumerate(trajectory.steps)
    ]
    return {
        "question_id": question.id,
        "question": trajectory.question_text or question.text,
        "gold": question.answer,
        "text": trajectory.text,
        "reward": trajectory.reward,
        "reward_terms": trajectory.reward_terms,
        "correct": trajectory.correct,
        "format_ok": trajectory.format_ok,
        "end": trajectory.end,
        "error": trajectory.error,
        "turn_ended": trajectory.turn_ended,
        "unfitting_tokens": trajectory.unfitting_tokens,
        "hybrid": trajectory.hybrid,
        "given": list(trajectory.given),
        "segments": [list(segment) for segment in trajectory.segments],
        "policy_version": trajectory.policy_version,
        "version_changes": [list(change) for change in trajectory.version_changes],
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

    Each line is a :func:`transcript` with ``group`` (its group's index in the batch) and ``advantage`` (eq. 10, of the whole
    trajectory; None if it failed).

    Args:
        folder: made if it is missing.
        name: of the file.
        groups: the sampled groups.
        filesystem: a ``pyarrow.fs.FileSystem``, as Tune stores trials on; None: this machine's.
        objective: the settings of the training.
    """
    from pyarrow.fs import LocalFileSystem

    filesystem = filesystem or LocalFileSystem()
    filesystem.create_dir(folder, recursive=True)
    rows = []
    for index, group in enumerate(groups):
        advantages = trajectory_advantages(group, objective) if group.members else []
        own = {id(t): round(value, 4) for t, value in zip(group.members, advantages, strict=True)}
        rows += [
            {"group": index, **transcript(group.question, t, objective), "advantage": own.get(id(t))}
            for t in group.trajectories
        ]
    path = f"{folder}/{name}"
    with filesystem.open_output_stream(f"{path}.partial") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "backslashreplace"))
    filesystem.move(f"{path}.partial", path)


def delete_transcripts(folder: str, last: int, filesystem: Any = None) -> None:
    """Delete the transcripts of the iterations up to ``last``; every other file stays."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    filesystem = filesystem or LocalFileSystem()
    for info in filesystem.get_file_info(FileSelector(folder)):
        match = _NAME.fullmatch(info.base_name)
        if match and info.type == FileType.File and int(match[1]) <= last:
            filesystem.delete_file(info.path)

"""The base policies of the chains: made one by one with other seeds until enough pass the gates of the plan."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from learning_parts.habits import habits
from learning_parts.imitation import Imitation, make_policy
from learning_parts.plan import GATES, POLICIES
from learning_parts.results import RESULTS

FOLDER = RESULTS / "policies"  # in the repository: another kind of CPU would make others
NOTE = "habits.json"  # of all that were tried
MOST = 12  # seeds that are tried


def passes(found: Mapping[str, float], gates: Mapping[str, tuple[float, float]] = GATES) -> bool:
    """Whether a policy's habits are within all gates."""
    return all(low <= found[name] <= high for name, (low, high) in gates.items())


def base_policies(folder: Path = FOLDER) -> list[Path]:
    """Folders of the policies, in order; made where they are not there yet. Of those that do not pass, only the habits stay.

    Raises:
        ValueError: too few of the seeds pass.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / NOTE
    tried: dict[str, dict[str, float]] = json.loads(note.read_text()) if note.exists() else {}
    good: list[Path] = []
    for seed in range(MOST):
        policy = folder / f"policy-{seed}"
        if policy.name not in tried:
            make_policy(policy, Imitation(seed=seed), len(os.sched_getaffinity(0)))
            tried[policy.name] = habits(policy)
            note.write_text(json.dumps(tried, indent=1) + "\n")
        if passes(tried[policy.name]):
            good.append(policy)
        else:
            shutil.rmtree(policy, ignore_errors=True)
        if len(good) == POLICIES:
            return good
    raise ValueError(f"only {len(good)} of {MOST} base policies pass the gates {GATES}")

"""One process of the comparison: ``python -m against_trl_parts PART FOLDER POLICY RESULT``."""

from __future__ import annotations

import sys
from pathlib import Path

from against_trl_parts.job import Job

if __name__ == "__main__":
    part, (folder, policy, result) = sys.argv[1], map(Path, sys.argv[2:])
    job = Job.read(folder)
    if part == "base":
        from against_trl_parts.base import make

        make(job, folder, policy)
    elif part == "held_out":
        from against_trl_parts.held_out import evaluate

        evaluate(job, policy, result)
    elif part == "ours":
        from against_trl_parts import ours

        ours.train(job, folder, result)
    else:
        from against_trl_parts import theirs

        theirs.train(job, folder, result, use_vllm=part == "trl_vllm")

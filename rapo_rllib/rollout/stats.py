"""Counters and seconds of one ``RolloutLoop.run``: nothing that happens to a trajectory goes uncounted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class RolloutStats:
    """What happened, over all trajectories of one run. Seconds are wall time; ``tool_s`` is summed over parallel calls."""

    seconds: float = 0.0
    retrieval_s: float = 0.0
    tool_s: float = 0.0
    idle_s: float = 0.0  # the engine had nothing to do: everyone waited for a tool or for retrieval
    prompt_tokens: int = 0
    retrieval_queries: int = 0
    retrieval_failures: int = 0  # the buffer did not answer; those trajectories went on without
    retrieval_empty: int = 0  # nothing suitable was found
    retrieval_skipped: int = 0  # the trace would have passed the response budget
    ends: Counter[str] = field(default_factory=Counter)
    tool_calls: Counter[str] = field(default_factory=Counter)
    tool_failures: Counter[str] = field(default_factory=Counter)  # "python/timeout" -> count

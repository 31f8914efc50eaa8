"""Count failed retrievals of a training, on all env runners, or of a model's evaluation; too many stop it.

Flow: ``algorithm/algorithm.py`` and ``agents/setup.py`` count here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.stats import RolloutStats

MIN_QUERIES = 20  # a share of fewer says little
MAX_SHARE = 0.5  # with fewer than half of its retrievals a run is no longer what its keys say
PATIENCE_S = 900.0  # of a training: a server that is gone for a while costs retrievals, and not the run


class RetrievalFailures:
    """Counts on the driver, so that neither a restarted env runner forgets nor one that raises takes its trajectories along.

    Args:
        uri: of the buffer, for the message.
        then: what to do when it answers again, for the message.
        patience_s: how far back the share looks; nothing is stopped sooner. None: at all that was asked, at once.
        clock: seconds.
    """

    def __init__(
        self,
        uri: str,
        then: str = "resume from a checkpoint",
        patience_s: float | None = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uri, self._then, self._patience_s, self._clock = uri, then, patience_s, clock
        self._rollouts = deque[tuple[float, int, int]]()  # their ends, queries, failures

    def add(self, stats: Iterable[RolloutStats]) -> None:
        """Count those of a rollout.

        Raises:
            RetrievalError: for as long as that too large a share of the queries has failed (and at least 20 were made).
        """
        counted, now = list(stats), self._clock()
        self._rollouts.append((now, sum(s.retrieval_queries for s in counted), sum(s.retrieval_failures for s in counted)))
        if self._patience_s is not None:
            while len(self._rollouts) > 1 and self._rollouts[1][0] <= now - self._patience_s:
                self._rollouts.popleft()
            if self._rollouts[0][0] > now - self._patience_s:
                return
        queries, failures = (sum(rollout[index] for rollout in self._rollouts) for index in (1, 2))
        if queries >= MIN_QUERIES and failures > MAX_SHARE * queries:
            raise RetrievalError(
                f"{failures} of {queries} retrievals failed, more than {MAX_SHARE:.0%}: see that "
                f"step_trace_buffer.uri = {self._uri!r} answers, then {self._then}"
            )

"""Share of retrieval by question: lower, the more often the policy is right without help (algorithm.md section 3).

    groups --learn--> right and count of each question --share--> a question's share of ``retrieval_prob``

Help is for questions that the policy cannot answer alone; one that it gets right alone is trained as it will be asked.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from rapo_rllib.types import Question, TrajectoryGroup

WINDOW = 64  # newest unaided trajectories of all questions, whose success rate is the estimate for a new question
PER_QUESTION = 16  # newest unaided trajectories of one question that count
_PRIOR = 2  # trajectories that the success rate of all questions counts as


def unaided_rate(right: int, count: int, overall: float) -> float:
    """Estimate how often the policy is right on a question without help.

        ŝ = (r + k s̄) / (n + k),  k = 2

    Args:
        right: r, right ones among the question's unaided trajectories.
        count: n, the question's unaided trajectories.
        overall: s̄, the share of unaided trajectories of all questions that are right.

    Returns:
        ŝ, a share. Example for s̄ = 0.25: 0.25 without a trajectory, 0.8125 with 6 of 6 right.
    """
    return (right + _PRIOR * overall) / (count + _PRIOR)


class UnaidedSuccess:
    """Outcomes of trajectories that retrieved nothing, by question."""

    def __init__(self) -> None:
        self._newest: deque[bool] = deque(maxlen=WINDOW)
        self._seen: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=PER_QUESTION))

    @property
    def overall(self) -> float:
        """Share of the newest unaided trajectories that are right; 0 without any, so that training begins with help."""
        return sum(self._newest) / max(len(self._newest), 1)

    def share(self, question: Question) -> float:
        """Compute the share of ``retrieval_prob`` that holds for the question's trajectories: 1 - ŝ."""
        seen = self._seen.get(_key(question), ())
        return 1.0 - unaided_rate(sum(seen), len(seen), self.overall)

    def learn(self, groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
        """Count the outcomes of finished groups, and return their metrics: ``unaided/...``."""
        whole = [group for group in groups if group.question.is_whole]
        for group in whole:
            alone = [t for t in group.counted if not t.retrievals]
            # hybrid trajectories without a retrieval are too often short ones: they count only if there are no others
            outcomes = [t.correct for t in ([t for t in alone if not t.hybrid] or alone)]
            if outcomes:
                self._newest.extend(outcomes)
                self._seen[_key(group.question)].extend(outcomes)
        shares = [group.question.retrieval_share for group in whole]
        found = {"unaided/accuracy": self.overall}
        return found | ({"unaided/retrieval_share": sum(shares) / len(shares)} if shares else {})

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"newest": list(self._newest), "seen": {key: list(seen) for key, seen in list(self._seen.items())}}

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Restore the state of a checkpoint; None: in its run all questions retrieved alike."""
        state = state or {"newest": [], "seen": {}}
        self._newest.clear()
        self._newest.extend(state["newest"])
        self._seen.clear()
        for key, seen in state["seen"].items():
            self._seen[key].extend(seen)


def _key(question: Question) -> str:
    text = question.text.strip() or question.id
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]

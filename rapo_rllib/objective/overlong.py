"""Punish long responses: DAPO's soft overlong punishment (algorithm.md section 11; arXiv 2503.14476).

    response length --overlong_punishment--> added to the outcome reward --> advantages

(Overlong filtering, the other way to treat truncated responses, leaves them out of the loss; ``batching/samples.py``.)
"""

from __future__ import annotations


def overlong_punishment(length: int, limit: float, buffer: float) -> float:
    """Punishment of one response by its length, linear over the end of the budget.

        R(y) = 0                              where |y| ≤ L_max - L_cache
        R(y) = (L_max - L_cache - |y|) / L_cache   where |y| ≤ L_max
        R(y) = -1                             above

    Args:
        length: |y|, response tokens. Here those of observations and step traces count, since they use up the same budget, and
            those of a tool's result that no longer fitted and ended the trajectory.
        limit: L_max, tokens.
        buffer: L_cache, tokens, at most ``limit``; 0: no punishment at all.

    Returns:
        R(y), in [-1, 0].
    """
    if buffer <= 0:
        return 0.0
    return -min(1.0, max(0.0, (length - (limit - buffer)) / buffer))

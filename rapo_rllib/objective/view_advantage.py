"""Advantage of a token that the policy itself would rather write with a retrieved step in view (algorithm.md section 15).

    log π(token | history, step) - log π(token | history) --gate--> an extra advantage of the token

After OPID (arXiv 2606.26790), which scores a sampled response again with a skill in its context, and SDAR (2605.15155), whose
sigmoid gate hears little of what the step speaks against: it may not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BOUND = 1.0  # of a shift, nats: a token that is all but ruled out without the step would outweigh the outcome


def view_advantages(shifts: Sequence[float]) -> np.ndarray:
    """Turn shifts of logprobs into advantages.

        A_view = σ(Δ) · max(-c, min(Δ, c)),  c = 1

    Args:
        shifts: ``[T]`` Δ, log π_old of each token with the step in view, less that without, nats; 0 where nothing was in view.

    Returns:
        ``[T]`` A_view. Example: Δ = 1: 0.731; Δ = -1: -0.269; Δ = 0: 0.
    """
    delta = np.asarray(shifts, dtype=np.float64)
    return np.clip(delta, -BOUND, BOUND) / (1.0 + np.exp(-np.clip(delta, -50, 50)))

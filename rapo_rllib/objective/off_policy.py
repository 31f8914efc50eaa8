"""The objective of tokens that another policy wrote (algorithm.md section 11): trajectory-level off-policy mixing.

    ratio to the policy that wrote them --policy_shaping--> f --times A--> objective of each token

Shapes: ``N`` tokens.
"""

from __future__ import annotations

import torch


def policy_shaping(ratio: torch.Tensor, gamma: float) -> torch.Tensor:
    """Shaped ratio of off-policy tokens: LUFFY (arXiv 2504.14945).

        f(r) = r / (r + γ),   f'(r) = γ / (r + γ)²

    Not clipped. The gradient ``f'(r) r A ∇log π`` is largest at ``r = γ``: it lifts tokens that the policy thinks unlikely,
    where the plain ratio's, ``r A ∇log π``, would vanish.

    Args:
        ratio: r = π_θ / π_φ, ``[N]``. What an expert wrote has no recorded probabilities; as in the paper its π_φ is 1, so that
            r is π_θ itself.
        gamma: γ, positive; the paper's is 0.1.

    Returns:
        f(r), ``[N]``, in [0, 1).
    """
    return ratio / (ratio + gamma)

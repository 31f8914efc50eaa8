"""Divide the step traces that are wanted among sources."""

from __future__ import annotations

from collections.abc import Mapping


def quotas(available: Mapping[str, int], weights: Mapping[str, float], wanted: int | None) -> dict[str, int]:
    """Shares of ``wanted`` in proportion to the sources' weights; what one cannot give, the others give by theirs.

    Example: sources with 100, 100 and 3 traces, weights 2, 1 and 1: of 40 traces 25, 12 and 3.

    Args:
        available: traces of each source.
        weights: of each source; 1 where it is missing.
        wanted: traces in all; None: every one.
    """
    if wanted is None or wanted >= sum(available.values()):
        return dict(available)
    given: dict[str, int] = {}
    left, rest = wanted, dict(available)
    while rest:
        total = sum(weights.get(source, 1.0) for source in rest)
        share = {source: left * weights.get(source, 1.0) / total if total else 0.0 for source in rest}
        short = [source for source in rest if rest[source] <= share[source]]
        if not short:
            return given | _rounded(share, left)
        for source in short:  # gives all it has; the others share what is left
            given[source] = rest.pop(source)
            left -= given[source]
    return given


def _rounded(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers whose sum is ``total``: rounded down, the largest remainders up. Nothing where all shares are 0."""
    floors = {source: int(share) for source, share in shares.items()}
    missing = total - sum(floors.values()) if any(shares.values()) else 0
    for source in sorted(shares, key=lambda name: (floors[name] - shares[name], name))[:missing]:
        floors[source] += 1
    return floors

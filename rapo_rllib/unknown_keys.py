"""The one message for a key that nobody reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_SHOWN = 40


def refuse_unknown_keys(given: Collection[str], known: Collection[str], where: str = "") -> None:
    """Raise ``ValueError`` naming the first key of ``given`` that is not ``known``, and the nearest that is.

    Args:
        given: what a user wrote.
        known: what would have been right.
        where: what stands before the key, dot included, for example ``"env_config."``.
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.5)
            hint = f"did you mean '{where}{near[0]}'?" if near else f"valid keys: {', '.join(sorted(known)[:_SHOWN])}"
            raise ValueError(f"unknown key '{where}{key}': {hint}")

"""Checks of a user's keys: unknown names, and values of ``env_config``."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_SHOWN = 40
MOST = 1e9  # of numbers that nothing else bounds: larger ones are slips, or overflow somewhere
MOST_SECONDS = 1e6  # that something waits: an operating system's own limit for sockets is not far above


def refuse_unknown_keys(given: Collection[str], known: Collection[str], where: str = "") -> None:
    """Raise ``ValueError`` naming the first key of ``given`` that is not ``known``, and the nearest that is.

    Args:
        given: what a user wrote.
        known: what would have been right.
        where: what stands before the key, dot included, for example ``"env_config."``.
    """
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key '{where}{key}': {nearest_key(key, known, where)}")


def nearest_key(key: object, known: Collection[str], where: str = "") -> str:
    """Name the key that was meant by one that is not ``known``, or what is known."""
    names = sorted(name for name in known if not name.startswith("_"))
    longer = [name for name in names if name.startswith(f"{key}_")]
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.85) or longer  # a slip, or a name that has become longer
    near = near or difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
    return f"did you mean '{where}{near[0]}'?" if near else f"valid keys: {', '.join(names[:_SHOWN])}"


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise ``ValueError`` naming the key of ``env_config``, its value and what it must be, unless ``condition``."""
    if not condition:
        raise ValueError(f"env_config.{key} = {value!r}: {rule}")


def utf8_size(text: str, what: str) -> int:
    """Count the bytes of a text. Raises ``ValueError``, which names ``what`` it is, if it holds half a character."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        at = error.start
        raise ValueError(
            f"{what} holds half a character ({text[at]!a}, at {at}), which is no Unicode and cannot be stored; mend or drop it"
        ) from error

"""Checks of a user's keys: unknown names, and values of ``env_config``."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_SHOWN = 40
MOST = 1e9  # upper bound of numbers that have no other: larger ones are slips, or overflow somewhere
MOST_SECONDS = 1e6  # upper bound of waiting times: an operating system's own limit for sockets is not far above
MOST_FOUND = 16_384  # rows that one search of a Milvus server may ask for


def refuse_unknown_keys(given: Collection[str], known: Collection[str], where: str = "") -> None:
    """Refuse unknown keys with a ``ValueError`` that names the first one in ``given`` and the nearest of ``known``.

    Args:
        given: the keys that a user wrote.
        known: the valid keys.
        where: prefix of the keys, dot included, for example ``"env_config."``.
    """
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key '{where}{key}': {nearest_key(key, known, where)}")


def nearest_key(key: object, known: Collection[str], where: str = "") -> str:
    """Suggest the valid key that an unknown ``key`` was meant to be; list the valid keys if none is near."""
    names = sorted(name for name in known if not name.startswith("_"))
    longer = [name for name in names if name.startswith(f"{key}_")]
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.85) or longer  # a slip, or the beginning of a name
    near = near or difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
    return f"did you mean '{where}{near[0]}'?" if near else f"valid keys: {', '.join(names[:_SHOWN])}"


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise ``ValueError`` naming the key of ``env_config``, its value and what it must be, unless ``condition``."""
    if not condition:
        raise ValueError(f"env_config.{key} = {value!r}: {rule}")


def utf8_size(text: str, what: str) -> int:
    """Count the UTF-8 bytes of a text. Raises ``ValueError``, naming the text as ``what``, if it holds half a character."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        at = error.start
        raise ValueError(
            f"{what} holds half a character ({text[at]!a}, at {at}), which is no Unicode and cannot be stored; mend or drop it"
        ) from error

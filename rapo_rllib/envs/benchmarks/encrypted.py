"""Rows that are published encrypted so that no crawler reads the answers, as BrowseComp's are.

A cipher is Base64 of the text XOR the repeated SHA-256 digest of the row's ``canary``, which stands beside it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from itertools import cycle
from typing import Any


def decrypted_row(row: Mapping[str, Any], fields: tuple[str, ...], where: str) -> dict[str, Any]:
    """``row`` with ``fields`` in plain text; a row without a canary is in plain text already.

    Raises:
        ValueError: a field is no cipher of this row's canary.
    """
    canary = row.get("canary")
    if not canary:
        return dict(row)
    try:
        return {**row, **{field: _decrypted(row[field], canary) for field in fields if field in row}}
    except (ValueError, AttributeError, TypeError) as error:  # Base64, UTF-8; a cell that is no text
        raise ValueError(f"{where}: cannot be decrypted with its canary ({error}): the file is damaged") from error


def _decrypted(cipher: str, canary: str) -> str:
    content = base64.b64decode(cipher, validate=True)
    key = hashlib.sha256(canary.encode()).digest()
    return bytes(a ^ b for a, b in zip(content, cycle(key), strict=False)).decode()

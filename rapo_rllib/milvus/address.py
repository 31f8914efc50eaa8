"""Check Milvus URIs: a URI names a Milvus Lite path or a server, and any other URI is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rapo_rllib.services.credentials import TOKEN_VARIABLE, check_address


def checked_uri(uri: str, uri_key: str) -> str:
    """Check a URI and return it: ``http(s)://host:port[/database]`` unchanged, a Milvus Lite path as an absolute path.

    Raises:
        ValueError: the URI is neither, or has a user name or a password in it. The message names ``uri_key``.
    """
    check_address(uri, uri_key, f"put user:password into the environment variable {TOKEN_VARIABLE}")
    if re.fullmatch(r"https?://[^/?#\s]+(/\w*/?)?", uri, re.ASCII):  # pymilvus would use only the first part of a longer path
        return uri
    if is_lite_path(uri):
        return os.path.abspath(os.path.expanduser(uri))
    raise ValueError(
        f"{uri_key}: {uri!r} is neither a Milvus Lite path that ends in .db nor a server such as "
        "http://localhost:19530 or https://host/database; correct it"
    )


def is_lite_path(uri: str) -> bool:
    """Return whether the URI is a Milvus Lite path."""
    return uri.endswith(".db") and "://" not in uri


def check_lite_path(path: str, uri_key: str) -> None:
    """Make the parent folders of a Milvus Lite path, and refuse a path that cannot be a Milvus Lite folder.

    Raises:
        ValueError: a parent cannot be made, or the path is a file. The message names ``uri_key`` and a remedy.
    """
    folder = Path(path)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{uri_key}: the folder {folder.parent} cannot be made ({error}). Name another.") from error
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"{uri_key}: {path} is a file; Milvus Lite 3 keeps a folder. Name another path, or move the file away."
        )

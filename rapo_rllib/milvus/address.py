"""Tell what a Milvus URI names: a Milvus Lite path, or a server."""

from __future__ import annotations

import os

from rapo_rllib.services.credentials import TOKEN_VARIABLE, check_address


def checked_uri(uri: str, uri_key: str) -> str:
    """The URI as it is used: ``http(s)://…`` unchanged, a Lite path made absolute.

    Raises:
        ValueError: neither of both, or a server's with a password in it; naming ``uri_key``.
    """
    check_address(uri, uri_key, f"put user:password into the environment variable {TOKEN_VARIABLE}")
    if uri.startswith(("http://", "https://")) and len(uri.split("://", 1)[1]) > 0:
        return uri
    if is_lite_path(uri):
        return os.path.abspath(os.path.expanduser(uri))
    raise ValueError(
        f"{uri_key}: {uri!r} is neither a Milvus Lite path that ends in .db nor a server such as "
        "http://localhost:19530 or https://…; correct it"
    )


def is_lite_path(uri: str) -> bool:
    """Whether the URI is a Milvus Lite path."""
    return uri.endswith(".db") and "://" not in uri

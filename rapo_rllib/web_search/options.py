"""Options of the search in a job file: ``{name: web_search, options: {provider: brave, top_k: 3}}``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from rapo_rllib.services.credentials import check_address
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.web_search.providers import PROVIDERS

_WHERE = "env_config.tools: web_search option"
_KEY = re.compile(r"[!-~]+")


@dataclass(eq=False)
class SearchOptions(Knobs):
    """Options of ``web_search``. The provider's key is only in the environment: nothing here holds it.

    Raises:
        ValueError: an option is wrong; the message names option, value and fix.
    """

    where: ClassVar[str] = f"{_WHERE} "

    provider: Literal["searxng", "tavily", "brave", "serper"] = knob("", "who searches")
    top_k: int = knob(5, "results shown", at_least=1)
    base_url: str | None = knob(None, "address of a SearXNG instance, or a replacement of another provider's public one")
    cache: str | None = knob("~/.cache/rapo_rllib/web_search", "a folder on a local disk; None: no cache")
    rate_per_s: float | None = knob(
        None, "requests a second, of all processes that share the cache; None: those of the provider's smallest plan", above=0
    )
    params: dict = knob(dict, "further parameters of the provider, for example {exclude_domains: [example.org]}")

    def __post_init__(self) -> None:
        super().__post_init__()
        provider = PROVIDERS[self.provider]
        if self.top_k > provider.most_hits:
            raise ValueError(f"{_WHERE} top_k = {self.top_k}: {provider.name} gives {provider.most_hits} results at most")
        if self.base_url is None and provider.address is None:
            raise ValueError(f"{_WHERE} base_url is missing: {provider.name} has no public address; name your instance's")
        if self.base_url is not None:
            _check_address(self.base_url)
        if taken := sorted(provider.parameters("", 1).keys() & self.params.keys()):
            raise ValueError(f"{_WHERE} params.{taken[0]}: web_search sets it itself; leave it out")
        self.key()

    @property
    def address(self) -> str:
        """The address that requests go to, without a slash at the end."""
        return (self.base_url or PROVIDERS[self.provider].address or "").rstrip("/")

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.rate_per_s or PROVIDERS[self.provider].rate_per_s

    @property
    def key_env(self) -> str | None:
        """Name of the environment variable of the key; None: there are no keys."""
        return PROVIDERS[self.provider].key_env

    def key(self) -> str | None:
        """Return the key, read from the environment each time.

        Raises:
            ValueError: there is no key, or the value cannot be one. The message does not show the value.
        """
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise ValueError(
                f"{_WHERE} provider = {self.provider!r}: the environment variable {self.key_env} is not set; put the key of "
                f"your {self.provider} account there"
            )
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"{_WHERE} provider = {self.provider!r}: {self.key_env} holds spaces or characters that no key has"
            )
        return key


def _check_address(address: str) -> None:
    """Refuse an address that is no web address, or that holds a password (not shown: it would stand in logs)."""
    check_address(address, f"{_WHERE} base_url", "let a proxy add them")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{_WHERE} base_url = {address!r}: must be an address such as https://search.example.org")

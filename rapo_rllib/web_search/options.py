"""Options of the search in a job file: ``{name: web_search, options: {provider: brave, top_k: 3}}``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from rapo_rllib.services.credentials import check_address, check_variable
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.web_search.observation import LEAST_CHARS
from rapo_rllib.web_search.provider import Provider, Request
from rapo_rllib.web_search.providers import PROVIDERS

_WHERE = "env_config.tools: web_search option"
_KEY = re.compile(r"[!-~]+")


@dataclass(eq=False)
class SearchOptions(Knobs):
    """The options, checked. The key is in the environment only: nothing here holds it.

    Raises:
        ValueError: naming option, value and fix.
    """

    where: ClassVar[str] = f"{_WHERE} "

    provider: str = knob("", "searxng, tavily, brave or serper")
    top_k: int = knob(5, "results shown", at_least=1)
    max_chars: int = knob(3000, "of the whole observation", at_least=1)
    base_url: str | None = knob(None, "of a SearXNG instance; of others: instead of the public address")
    api_key_env: Any = knob(
        None,
        "name of the environment variable that holds the key; None: the provider's usual one",
        rule="a text or null",  # a secret that was put here by mistake is not shown
    )
    cache: str | None = knob("~/.cache/rapo_rllib/web_search", "a folder on a local disk; None: no cache", may_be_empty=True)
    rate_per_s: float | Literal["auto"] | None = knob(
        "auto", "requests a second, of all processes that share the cache; auto: the provider's; None: no limit", above=0
    )
    include_answer: bool = knob(False, "show the provider's direct answer above the results")
    params: Mapping[str, Any] | None = knob(None, "further parameters of the provider, for example {country: DE}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.provider not in PROVIDERS:
            raise ValueError(f"{_WHERE} provider = {self.provider!r}: use one of {', '.join(PROVIDERS)}")
        if self.cache == "":
            raise ValueError(f"{_WHERE} cache = '': must be a folder, or null for no cache")
        if self.max_chars < LEAST_CHARS * self.top_k:
            raise ValueError(f"{_WHERE} max_chars = {self.max_chars!r}: top_k = {self.top_k} results need {LEAST_CHARS} each")
        self._check_provider(PROVIDERS[self.provider])
        self._check_params(PROVIDERS[self.provider])
        self.key()

    @property
    def address(self) -> str:
        """The address that requests go to, without a slash at the end."""
        return (self.base_url or PROVIDERS[self.provider].address or "").rstrip("/")

    @property
    def rate(self) -> float | None:
        """Requests per second."""
        return PROVIDERS[self.provider].rate_per_s if isinstance(self.rate_per_s, str) else self.rate_per_s

    @property
    def key_env(self) -> str | None:
        """Name of the environment variable of the key."""
        return self.api_key_env or PROVIDERS[self.provider].key_env

    def key(self) -> str | None:
        """The key, read from the environment each time.

        Raises:
            ValueError: there is none, or it cannot be one. It does not show the value.
        """
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise ValueError(
                f"{_WHERE} provider = {self.provider!r}: the environment variable {self.key_env} is not set; put the key of "
                f"your {self.provider} account there, or name another variable in api_key_env"
            )
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"{_WHERE} provider = {self.provider!r}: {self.key_env} holds spaces or characters that no key has"
            )
        return key

    def request(self, query: str) -> Request:
        """The request of one query, the user's parameters included."""
        provider = PROVIDERS[self.provider]
        plain = provider.request(query, self.top_k, self.include_answer)
        extra = self.params or {}
        if plain.body is not None:
            return Request(plain.method, plain.path, plain.params, {**extra, **plain.body})
        return Request(plain.method, plain.path, {**extra, **plain.params})

    def _check_provider(self, provider: Provider) -> None:
        if self.top_k > provider.most_hits:
            raise ValueError(f"{_WHERE} top_k = {self.top_k}: {provider.name} gives {provider.most_hits} results at most")
        if self.include_answer and not provider.gives_answers:
            raise ValueError(f"{_WHERE} include_answer = true: {provider.name} gives no direct answers; leave it out")
        if self.base_url is None and provider.address is None:
            raise ValueError(f"{_WHERE} base_url is missing: {provider.name} has no public address; name your instance's")
        if self.base_url is not None:
            _check_address(self.base_url)
        if self.api_key_env is not None and provider.key_env is None:
            raise ValueError(f"{_WHERE} api_key_env: {provider.name} has no keys; leave it out")
        if self.api_key_env is not None:
            check_variable(self.api_key_env, f"{_WHERE} api_key_env", provider.key_env or "")

    def _check_params(self, provider: Provider) -> None:
        if not isinstance(self.params, Mapping | None) or any(not isinstance(name, str) for name in self.params or {}):
            raise ValueError(
                f"{_WHERE} params = {self.params!r}: must be a mapping of names to values, such as {{country: DE}}"
            )
        try:
            json.dumps(self.params)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_WHERE} params = {self.params!r}: {error}") from error
        plain = provider.request("", 1, False)
        for name in self.params or {}:
            if name in {**plain.params, **(plain.body or {})}:
                raise ValueError(f"{_WHERE} params.{name}: web_search sets it itself; leave it out")


def _check_address(address: Any) -> None:
    """Refuse what is no web address, and passwords in it (not shown: they would stand in logs)."""
    check_address(address, f"{_WHERE} base_url", "let a proxy add them")
    parts = urlsplit(address) if isinstance(address, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{_WHERE} base_url = {address!r}: must be an address such as https://search.example.org")

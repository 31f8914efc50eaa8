"""Describe search providers: the shape of a request, and what its answer means. Pure functions; ``tool.py`` does the rest.

query -> Provider.request -> Request -> (HTTP) -> JSON -> Provider.read -> Found
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rapo_rllib.errors import ServiceError
from rapo_rllib.services.http_json import retry_after


@dataclass(frozen=True)
class Request:
    """One HTTP request, without address and key: what the cache knows a search by."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)  # of a GET
    body: Mapping[str, Any] | None = None  # JSON of a POST


@dataclass(frozen=True)
class Hit:
    """One result, as the provider wrote it: HTML and line breaks included."""

    title: str
    url: str
    snippet: str


@dataclass(frozen=True)
class Found:
    """All results of one search, best first; ``answer``: the provider's direct answer, empty if it gave none."""

    hits: tuple[Hit, ...] = ()
    answer: str = ""


class Provider(ABC):
    """A search provider; subclasses say where they differ."""

    name: ClassVar[str]
    address: ClassVar[str | None]  # None: everyone's own
    key_env: ClassVar[str | None]  # environment variable of the key; None: there are no keys
    rate_per_s: ClassVar[float | None]  # of the smallest plan
    most_hits: ClassVar[int]  # of one request
    query_chars: ClassVar[int] = 2000
    query_words: ClassVar[int] = 400
    gives_answers: ClassVar[bool] = True

    @abstractmethod
    def request(self, query: str, top_k: int, with_answer: bool) -> Request:
        """The request for ``top_k`` results."""

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that show the key; none for a provider without keys."""
        return {}

    @abstractmethod
    def read(self, answer: Any) -> Found:
        """The results in a parsed answer.

        Raises:
            ValueError: the answer has another shape than documented; says which.
        """

    def refusal(self, error: ServiceError) -> str | None:
        """Why no search at all can succeed until somebody mends it; None: that is not so."""
        if error.status in (401, 403):
            return "it refuses the key"
        return "the account has no searches left" if error.status == 402 else None

    def wait_asked(self, headers: Mapping[str, str]) -> float | None:
        """Seconds to wait after an error, where the provider says so."""
        return retry_after(headers)


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """``value`` if it is a JSON object."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is no object")
    return value


def hits(rows: Any, where: str, *, title: str = "title", url: str = "url", snippet: str) -> tuple[Hit, ...]:
    """The rows of a list of results; ``title``, ``url``, ``snippet``: names of their fields. Rows without address are left out.

    Raises:
        ValueError: there is no list at ``where``.
    """
    if not isinstance(rows, list):
        raise ValueError(f"there is no list at {where}")
    found = [Hit(*(text(row.get(key)) for key in (title, url, snippet))) for row in rows if isinstance(row, Mapping)]
    return tuple(hit for hit in found if hit.url.startswith(("http://", "https://")))


def text(value: Any) -> str:
    """``value`` if it is a string, else nothing."""
    return value if isinstance(value, str) else ""


def first_text(values: Iterable[Any]) -> str:
    """The first string that is not empty."""
    return next(filter(None, map(text, values)), "")

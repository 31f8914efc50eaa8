"""Search providers as data: the shape of a request, and where its answer holds results. Pure; ``tool.py`` does the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rapo_rllib.errors import ServiceError
from rapo_rllib.services.http_json import retry_after

_NO_KEY, _SPENT = "it refuses the key", "the account has no searches left"
_USUAL_REFUSALS = ((401, b"", _NO_KEY), (403, b"", _NO_KEY), (402, b"", _SPENT))


class Hit(NamedTuple):
    """A search result as the provider wrote it, with HTML and line breaks."""

    title: str
    url: str
    snippet: str


@dataclass(frozen=True)
class Provider:
    """A search provider; a new one is an entry of ``PROVIDERS``."""

    name: str
    address: str | None  # None: users have an instance of their own
    path: str
    rows: tuple[str, ...]  # the fields that lead to the list of results
    snippet: str  # the field of a result that has its text
    rate_per_s: float  # of the smallest plan
    url: str = "url"  # the field of a result that has its address
    posts: bool = False  # JSON; else parameters of a GET
    query: str = "q"  # name of the parameter with the query
    count: str | None = None  # name of the parameter with the number of results; None: there is none, and results are cut
    fixed: Mapping[str, Any] = field(default_factory=dict)  # further parameters
    key_env: str | None = None  # environment variable of the key; None: there are no keys
    key_header: str = ""
    key_prefix: str = ""
    most_hits: int = 20  # of one request
    windows: bool = False  # whether headers of its errors tell several windows of its rate limit, in seconds
    query_chars: int = 2000
    query_words: int = 400
    # Status, a part of the answer, and the reason why every search must fail until it is fixed.
    refusals: tuple[tuple[int, bytes, str], ...] = ()

    def parameters(self, query: str, top_k: int) -> dict[str, Any]:
        """Return the parameters of a search for ``top_k`` results."""
        return {self.query: query, **({self.count: top_k} if self.count else {}), **self.fixed}

    def request(self, sent: Mapping[str, Any], key: str | None) -> dict[str, Any]:
        """Return the arguments of httpx for a search with the parameters ``sent``."""
        headers = {"Accept": "application/json", **({self.key_header: self.key_prefix + key} if key else {})}
        return {"method": "POST" if self.posts else "GET", "json" if self.posts else "params": dict(sent), "headers": headers}

    def read(self, answer: Any) -> list[Hit]:
        """Read the results from a parsed answer, and leave out those without a web address.

        Raises:
            ValueError: the answer has another shape than documented, or no results since some engines did not answer.
        """
        if not isinstance(answer, Mapping):
            raise ValueError("the answer is no object")
        if answer.get("type") == "search" and answer.get("web") is None:
            return []  # Brave's way to say that nothing was found
        rows: Any = answer
        for name in self.rows:
            rows = rows.get(name) if isinstance(rows, Mapping) else None
        if not isinstance(rows, list):
            raise ValueError(f"there is no list at {'.'.join(self.rows)}")
        names = ("title", self.url, self.snippet)
        every = [Hit(*(_text(row.get(name)) for name in names)) for row in rows if isinstance(row, Mapping)]
        found = [hit for hit in every if hit.url.startswith(("http://", "https://"))]
        if not found and answer.get("unresponsive_engines"):
            raise ValueError("none of its engines has results, and some did not answer")
        return found

    def refusal(self, error: ServiceError) -> str | None:
        """Find the reason why every search must fail until it is fixed; None: there is no such reason."""
        for status, mark, reason in (*self.refusals, *_USUAL_REFUSALS):
            if error.status == status and mark in error.body:
                return reason
        return None


def wait_for_windows(headers: Mapping[str, str]) -> float | None:
    """Read the seconds until all used-up windows of a rate limit restart; without such windows, those of ``Retry-After``.

    Example: limit ``1, 2000``, remaining ``0, 1985``, reset ``1, 1419704`` (a second and a month): 1 second.
    """
    columns = (headers.get(f"x-ratelimit-{name}", "").split(",") for name in ("limit", "remaining", "reset"))
    try:
        windows = [tuple(map(int, window)) for window in zip(*columns, strict=True)]
    except ValueError:
        return retry_after(headers)
    used_up = [reset for limit, remaining, reset in windows if limit > 0 and remaining <= 0]  # limit 0: no limit
    return float(max(used_up)) if used_up else retry_after(headers)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


_EVERY = (
    Provider(  # a metasearch engine that people run themselves: https://docs.searxng.org/dev/search_api.html
        name="searxng",
        address=None,
        path="/search",
        rows=("results",),
        snippet="content",
        rate_per_s=2.0,  # the engines behind it block frequent clients
        fixed={"format": "json"},  # 403 is the documented answer to a format that is switched off
        refusals=((403, b"", "it refuses to answer in JSON: add json to search.formats in its settings.yml"),),
    ),
    Provider(  # https://docs.tavily.com/documentation/api-reference/endpoint/search
        name="tavily",
        address="https://api.tavily.com",
        path="/search",
        rows=("results",),
        snippet="content",
        rate_per_s=1.5,  # development keys: 100 a minute
        posts=True,
        query="query",
        count="max_results",
        key_env="TAVILY_API_KEY",
        key_header="Authorization",
        key_prefix="Bearer ",
        query_chars=400,
        refusals=((432, b"", _SPENT), (433, b"", _SPENT)),  # the plan's limit, the pay-as-you-go limit
    ),
    Provider(  # an index of its own; a wrong key has the status of a wrong query
        name="brave",
        address="https://api.search.brave.com",
        path="/res/v1/web/search",
        rows=("web", "results"),
        snippet="description",
        rate_per_s=1.0,
        count="count",
        fixed={"result_filter": "web", "text_decorations": "false"},
        key_env="BRAVE_API_KEY",
        key_header="X-Subscription-Token",
        windows=True,
        query_chars=400,
        query_words=50,
        refusals=((422, b"SUBSCRIPTION_TOKEN", _NO_KEY),),
    ),
    Provider(  # Google's organic results; more than ten cost two credits
        name="serper",
        address="https://google.serper.dev",
        path="/search",
        rows=("organic",),
        snippet="snippet",
        rate_per_s=20.0,
        url="link",
        posts=True,
        count="num",
        key_env="SERPER_API_KEY",
        key_header="X-API-KEY",
        most_hits=100,
        refusals=((400, b"credits", _SPENT),),
    ),
)
PROVIDERS = {provider.name: provider for provider in _EVERY}

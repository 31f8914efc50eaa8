"""Brave Search. https://api-dashboard.search.brave.com/app/documentation/web-search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.errors import ServiceError
from rapo_rllib.web_search.provider import Found, Provider, Request, hits, mapping


class Brave(Provider):
    """An index of its own; snippets mark the query's words with ``<strong>`` unless asked not to."""

    name = "brave"
    address = "https://api.search.brave.com"
    key_env = "BRAVE_API_KEY"
    rate_per_s = 1.0
    most_hits = 20
    query_chars = 400
    query_words = 50
    gives_answers = False

    def request(self, query: str, top_k: int, with_answer: bool) -> Request:
        """GET."""
        params = {"q": query, "count": top_k, "result_filter": "web", "text_decorations": "false"}
        return Request("GET", "/res/v1/web/search", params)

    def key_headers(self, key: str) -> dict[str, str]:
        """A header of its own."""
        return {"Accept": "application/json", "X-Subscription-Token": key}

    def read(self, answer: Any) -> Found:
        """``web.results[].{title, url, description}``; ``web`` is missing where nothing was found."""
        answer = mapping(answer, "the answer")
        if answer.get("type") == "search" and answer.get("web") is None:
            return Found()
        web = mapping(answer.get("web"), "web")
        return Found(hits(web.get("results"), "web.results", snippet="description"))

    def refusal(self, error: ServiceError) -> str | None:
        """A wrong key has the status of a wrong query, 422; only the code in the answer tells them apart."""
        if error.status == 422 and b"SUBSCRIPTION_TOKEN" in error.body:
            return "it refuses the key"
        return super().refusal(error)

    def wait_asked(self, headers: Mapping[str, str]) -> float | None:
        """Until all windows that are used up begin anew.

        Example: limit ``1, 2000``, remaining ``0, 1985``, reset ``1, 1419704`` (a second and a month): 1 second.
        """
        columns = (headers.get(f"x-ratelimit-{name}", "").split(",") for name in ("limit", "remaining", "reset"))
        try:
            windows = [tuple(map(int, window)) for window in zip(*columns, strict=True)]
        except ValueError:
            return super().wait_asked(headers)
        used_up = [reset for limit, remaining, reset in windows if limit > 0 and remaining <= 0]  # limit 0: none
        return float(max(used_up)) if used_up else super().wait_asked(headers)

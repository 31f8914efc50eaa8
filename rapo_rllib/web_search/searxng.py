"""SearXNG, a metasearch engine that people run themselves. https://docs.searxng.org/dev/search_api.html."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.errors import ServiceError
from rapo_rllib.web_search.provider import Found, Provider, Request, first_text, hits, mapping


class SearXNG(Provider):
    """A page of results has a fixed length, so ``top_k`` is cut from it."""

    name = "searxng"
    address = None
    key_env = None
    rate_per_s = 2.0  # the engines behind it shut out whoever asks too often
    most_hits = 20

    def request(self, query: str, top_k: int, with_answer: bool) -> Request:
        """GET; ``format`` must be among ``search.formats`` of the instance's settings."""
        return Request("GET", "/search", {"q": query, "format": "json"})

    def read(self, answer: Any) -> Found:
        """``results[].{title, url, content}``; answers are strings, or objects since 2025."""
        answer = mapping(answer, "the answer")
        found = hits(answer.get("results"), "results", snippet="content")
        silent = answer.get("unresponsive_engines")
        if not found and silent:
            raise ValueError("none of its engines has results, and some did not answer")
        answers, infoboxes = (answer.get(key) if isinstance(answer.get(key), list) else [] for key in ("answers", "infoboxes"))
        texts = [given.get("answer") if isinstance(given, Mapping) else given for given in answers]
        texts += [box.get("content") for box in infoboxes if isinstance(box, Mapping)]
        return Found(found, first_text(texts))

    def refusal(self, error: ServiceError) -> str | None:
        """Status 403 is the documented answer to a format that is switched off."""
        if error.status == 403:
            return "it refuses to answer in JSON: add json to search.formats in its settings.yml"
        return super().refusal(error)

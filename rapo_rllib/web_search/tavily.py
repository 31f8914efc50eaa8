"""Tavily. https://docs.tavily.com/documentation/api-reference/endpoint/search."""

from __future__ import annotations

from typing import Any

from rapo_rllib.errors import ServiceError
from rapo_rllib.web_search.provider import Found, Provider, Request, hits, mapping, text


class Tavily(Provider):
    """Snippets are passages of the page that answer the query."""

    name = "tavily"
    address = "https://api.tavily.com"
    key_env = "TAVILY_API_KEY"
    rate_per_s = 1.5  # development keys: 100 a minute
    most_hits = 20
    query_chars = 400

    def request(self, query: str, top_k: int, with_answer: bool) -> Request:
        """POST; a search of depth ``basic`` costs one credit, with or without answer."""
        return Request("POST", "/search", body={"query": query, "max_results": top_k, "include_answer": with_answer})

    def key_headers(self, key: str) -> dict[str, str]:
        """A bearer token."""
        return {"Authorization": f"Bearer {key}"}

    def read(self, answer: Any) -> Found:
        """``results[].{title, url, content}`` and ``answer``."""
        answer = mapping(answer, "the answer")
        return Found(hits(answer.get("results"), "results", snippet="content"), text(answer.get("answer")))

    def refusal(self, error: ServiceError) -> str | None:
        """Status 432: the plan's limit, 433: the pay-as-you-go limit."""
        return "the account has no searches left" if error.status in (432, 433) else super().refusal(error)

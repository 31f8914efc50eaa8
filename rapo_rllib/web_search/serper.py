"""Serper, Google's results. https://serper.dev."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.errors import ServiceError
from rapo_rllib.web_search.provider import Found, Provider, Request, first_text, hits, mapping


class Serper(Provider):
    """Google's organic results, and its answer box or knowledge graph."""

    name = "serper"
    address = "https://google.serper.dev"
    key_env = "SERPER_API_KEY"
    rate_per_s = 20.0
    most_hits = 100

    def request(self, query: str, top_k: int, with_answer: bool) -> Request:
        """POST; more than ten results cost two credits."""
        return Request("POST", "/search", body={"q": query, "num": top_k})

    def key_headers(self, key: str) -> dict[str, str]:
        """A header of its own."""
        return {"X-API-KEY": key}

    def read(self, answer: Any) -> Found:
        """``organic[].{title, link, snippet}``; the answer is that of the box, else the graph's description."""
        answer = mapping(answer, "the answer")
        box, graph = (given if isinstance(given := answer.get(key), Mapping) else {} for key in ("answerBox", "knowledgeGraph"))
        direct = first_text([box.get("answer"), box.get("snippet"), graph.get("description")])
        return Found(hits(answer.get("organic"), "organic", url="link", snippet="snippet"), direct)

    def refusal(self, error: ServiceError) -> str | None:
        """Used-up credits have status 400."""
        if error.status == 400 and b"credits" in error.body:
            return "the account has no searches left"
        return super().refusal(error)

"""All providers by name; a new one is a subclass of ``Provider`` and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.errors import ServiceError
from rapo_rllib.web_search.provider import Found, Provider, Request, first_text, hits, mapping, text


class SearXNG(Provider):
    """A metasearch engine that people run themselves. https://docs.searxng.org/dev/search_api.html.

    A page of results has a fixed length, so ``top_k`` is cut from it.
    """

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


class Tavily(Provider):
    """https://docs.tavily.com/documentation/api-reference/endpoint/search.

    Snippets are passages of the page that answer the query.
    """

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


PROVIDERS: dict[str, Provider] = {provider.name: provider for provider in (SearXNG(), Tavily(), Brave(), Serper())}

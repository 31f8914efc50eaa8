"""Each provider is asked, and understood, as it documents."""

from collections.abc import Callable
from typing import Any

import pytest
from local_service import Reply, Request, local_service
from provider_answers import ANSWERS, BRAVE, KEY, OBSERVATION, SEARXNG

from rapo_rllib.errors import ToolError
from rapo_rllib.web_search.providers import PROVIDERS, wait_for_windows
from rapo_rllib.web_search.tool import WebSearch

Make = Callable[..., WebSearch]

QUERY = "longest river in France"
ASKED: dict[str, tuple[str, str, dict[str, list[str]], Any, tuple[str, str] | None]] = {
    "searxng": ("GET", "/search", {"q": [QUERY], "format": ["json"]}, None, None),
    "tavily": (
        "POST",
        "/search",
        {},
        {"query": QUERY, "max_results": 2},
        ("authorization", f"Bearer {KEY}"),
    ),
    "brave": (
        "GET",
        "/res/v1/web/search",
        {"q": [QUERY], "count": ["2"], "result_filter": ["web"], "text_decorations": ["false"]},
        None,
        ("x-subscription-token", KEY),
    ),
    "serper": ("POST", "/search", {}, {"q": QUERY, "num": 2}, ("x-api-key", KEY)),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_search(provider: str, web_search: Make) -> None:
    with local_service(lambda _: Reply(ANSWERS[provider])) as server:
        result = web_search(server.url + "/", provider, top_k=2).run(f" {QUERY}\n")
    assert (result.text, result.error) == (OBSERVATION, None)
    assert result.seconds > 0
    method, path, query, body, header = ASKED[provider]
    [request] = server.requests
    assert (request.method, request.path, request.query) == (method, path, query)
    assert (request.json if request.body else None) == body
    if header is None:
        assert KEY not in str(request.headers)
    else:
        assert request.headers[header[0]] == header[1]
        assert str(request).count(KEY) == 1
    if body is not None:
        assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("searxng", SEARXNG | {"results": [], "unresponsive_engines": []}),
        ("tavily", {"query": "x", "results": [], "answer": None, "images": [], "response_time": 0.9}),
        ("brave", BRAVE | {"web": {"type": "search", "results": []}}),
        ("brave", {"type": "search", "query": {"original": "x"}, "mixed": {"main": []}}),
        ("serper", {"searchParameters": {"q": "x"}, "organic": [], "credits": 1}),
        ("serper", {"organic": [None, 3, {"title": "no address"}, {"link": "javascript:alert(1)"}, {"link": 4}]}),
    ],
)
def test_nothing_found(provider: str, body: Any, web_search: Make) -> None:
    with local_service(lambda _: Reply(body)) as server:
        result = web_search(server.url, provider).run("x")
    assert (result.text, result.error) == ("(no results)", "no_results")


@pytest.mark.parametrize(
    ("provider", "body", "problem"),
    [
        ("searxng", SEARXNG | {"results": []}, "none of its engines has results, and some did not answer"),
        ("searxng", [], "the answer is no object"),
        ("tavily", {"results": {"0": {}}}, "there is no list at results"),
        ("tavily", "busy", "the answer is no object"),
        ("brave", {"type": "ErrorResponse"}, "there is no list at web.results"),
        ("brave", {"type": "search", "web": {"results": None}}, "there is no list at web.results"),
        ("serper", {"message": "ok"}, "there is no list at organic"),
        ("serper", None, "the answer is no object"),
    ],
)
def test_an_unknown_shape_is_a_failure_and_not_nothing(
    provider: str, body: Any, problem: str, web_search: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with local_service(lambda _: Reply(body)) as server:
        result = web_search(server.url, provider).run("x")
    assert (result.text, result.error) == ("SearchError: the search service failed", "service")
    assert f"{provider} answers with something unexpected: {problem}" in caplog.text


BRAVE_REFUSES = {"type": "ErrorResponse", "error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "status": 422}}
BRAVE_TOO_FAST = {"type": "ErrorResponse", "error": {"code": "RATE_LIMITED", "status": 429}}
MONTH_IS_SPENT = {"x-ratelimit-limit": "1, 2000", "x-ratelimit-remaining": "1, 0", "x-ratelimit-reset": "1, 1419704"}


def tavily_error(text: str) -> dict[str, Any]:
    return {"detail": {"error": text}}


@pytest.mark.parametrize(
    ("provider", "reply", "reason"),
    [
        ("tavily", Reply(tavily_error("Unauthorized: missing or invalid API key."), 401), "it refuses the key"),
        ("tavily", Reply(tavily_error("This request exceeds your plan's set usage limit."), 432), "no searches left"),
        ("tavily", Reply(tavily_error("This request exceeds the pay-as-you-go limit."), 433), "no searches left"),
        ("brave", Reply(BRAVE_REFUSES, 422), "it refuses the key"),
        ("brave", Reply({"error": {"code": "SUBSCRIPTION_NOT_FOUND"}}, 403), "it refuses the key"),
        ("brave", Reply(BRAVE_TOO_FAST, 429, MONTH_IS_SPENT), "no searches left"),
        ("serper", Reply({"message": "Unauthorized.", "statusCode": 403}, 403), "it refuses the key"),
        ("serper", Reply({"message": "Not enough credits", "statusCode": 400}, 400), "no searches left"),
        ("searxng", Reply(b"<!doctype html><title>403 Forbidden</title>", 403), "add json to search.formats in its settings"),
    ],
)
def test_what_no_search_can_pass_is_a_broken_tool(provider: str, reply: Reply, reason: str, web_search: Make) -> None:
    with (
        local_service(lambda _: reply) as server,
        pytest.raises(ToolError, match=f"web_search: {provider} .*{reason}") as caught,
    ):
        web_search(server.url, provider).run("x")
    assert len(server.requests) == 1
    assert KEY not in repr(caught.value)
    assert provider == "searxng" or f"{provider.upper()}_API_KEY" in str(caught.value)


@pytest.mark.parametrize(
    ("provider", "reply"),
    [
        ("brave", Reply({"error": {"code": "VALIDATION", "status": 422}}, 422)),
        ("tavily", Reply(tavily_error("Query is too long."), 400)),
        ("serper", Reply({"message": "Missing query parameter", "statusCode": 400}, 400)),
    ],
)
def test_a_refused_query_is_an_observation(provider: str, reply: Reply, web_search: Make) -> None:
    with local_service(lambda _: reply) as server:
        result = web_search(server.url, provider).run("x")
    assert (result.text, result.error) == ("SearchError: the search service does not accept this query", "refused")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-limit": "1, 2000", "x-ratelimit-remaining": "0, 1985", "x-ratelimit-reset": "1, 1419704"}, 1),
        ({"x-ratelimit-limit": "1, 2000", "x-ratelimit-remaining": "0, 0", "x-ratelimit-reset": "1, 1419704"}, 1419704),
        ({"x-ratelimit-limit": "50, 0", "x-ratelimit-remaining": "0, 0", "x-ratelimit-reset": "1, 1419704"}, 1),
        ({"x-ratelimit-limit": "1", "x-ratelimit-remaining": "0, 1", "x-ratelimit-reset": "?", "retry-after": "7"}, 7),
        ({"retry-after": "7"}, 7),
        ({}, None),
    ],
)
def test_brave_says_for_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_for_windows(headers) == seconds


def test_only_brave_is_read_so(web_search: Make) -> None:
    """Others say by the clock when their limit ends, which is no number of seconds to wait."""
    headers = {"x-ratelimit-limit": "1", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1764200000", "retry-after": "0"}
    with local_service(lambda _: Reply(b"", 429, headers)) as server:
        assert web_search(server.url, "tavily").run("x").error == "rate_limit"
        with pytest.raises(ToolError, match="no searches left"):
            web_search(server.url, "brave").run("x")


def query_of(request: Request) -> str:
    return request.json.get("query") or request.json["q"] if request.body else request.query["q"][0]


@pytest.mark.parametrize(
    ("provider", "words", "letters"),
    [
        ("brave", 50, 400),
        ("tavily", 200, 400),  # 200 words of one letter have 399 characters
        ("serper", 400, 2000),
        ("searxng", 400, 2000),
    ],
)
def test_a_long_query_is_cut_to_what_the_provider_takes(provider: str, words: int, letters: int, web_search: Make) -> None:
    with local_service(lambda _: Reply(ANSWERS[provider])) as server:
        tool = web_search(server.url, provider)
        assert tool.run("a " * 3000).error is None
        assert tool.run("b" * 3000).error is None
    assert list(map(query_of, server.requests)) == [" ".join("a" * words), "b" * letters]

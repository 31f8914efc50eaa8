"""Whatever the service does, a search ends in time with an observation that says so."""

from collections.abc import Callable

import pytest
from local_service import Reply, in_turn, local_service
from provider_answers import OBSERVATION, TAVILY

from rapo_rllib.web_search.tool import WebSearch

Make = Callable[..., WebSearch]

RATE_LIMIT = ("SearchError: too many searches at the moment; this one was not made", "rate_limit")
TIMEOUT = ("SearchError: the search service took too long", "timeout")
SERVICE = ("SearchError: the search service failed", "service")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply({}, 429, {"retry-after": "0"}), RATE_LIMIT),
        (Reply(b"no", 500), SERVICE),
        (Reply(b"no", 504), TIMEOUT),
        (Reply(b"\x00\xff garbage"), SERVICE),
        (Reply({}, delay_s=1.5), TIMEOUT),
        (Reply(TAVILY, drip_s=0.05), TIMEOUT),
    ],
)
def test_what_does_not_pass_is_an_observation(
    reply: Reply, expected: tuple[str, str], web_search: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with local_service(lambda _: reply) as server:
        timeout_s = 1.0 if expected == TIMEOUT else 20.0
        result = web_search(server.url, attempts=2, timeout_s=timeout_s).run("x")
        assert (result.text, result.error) == expected
        assert len(server.requests) == 2
    assert result.seconds > 0
    assert f"({expected[1]})" in caplog.text


@pytest.mark.parametrize("query", ["", " \n ", "\x00"])
def test_an_empty_query_asks_nobody(query: str, web_search: Make) -> None:
    with local_service(lambda _: Reply(TAVILY)) as server:
        result = web_search(server.url).run(query)
    assert (result.text, result.error) == ("(no query)", "empty")
    assert server.requests == []


def test_a_failure_is_not_remembered(web_search: Make) -> None:
    with local_service(in_turn(Reply(b"", 500), Reply(TAVILY))) as server:
        tool = web_search(server.url, attempts=1, top_k=2)
        assert tool.run("x").error == "service"
        assert tool.run("x").text == OBSERVATION

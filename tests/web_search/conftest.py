"""A key for every provider in the environment, and a search tool that asks a local server and keeps nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from provider_answers import KEY

from rapo_rllib.web_search import WebSearch

VARIABLES = ("BRAVE_API_KEY", "SERPER_API_KEY", "TAVILY_API_KEY")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, KEY)


@pytest.fixture
def web_search() -> Iterator[Callable[..., WebSearch]]:
    made: list[WebSearch] = []

    def make(url: str, provider: str = "tavily", **options: Any) -> WebSearch:
        plain = {"cache": None, "rate_per_s": None, "timeout_s": 20.0}
        made.append(WebSearch(provider, base_url=url, **{**plain, **options}))
        return made[-1]

    yield make
    for tool in made:
        tool.close()

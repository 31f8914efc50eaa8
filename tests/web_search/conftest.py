"""A key for every provider in the environment, and a search tool that asks a local server and keeps nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from provider_answers import KEY

from rapo_rllib.web_search.tool import WebSearch

LIMITS = {"timeout_s": 20.0, "attempts": 3, "patience_s": 60.0}  # constants of the class, read when a tool is made
VARIABLES = ("BRAVE_API_KEY", "SERPER_API_KEY", "TAVILY_API_KEY")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, KEY)


@pytest.fixture
def web_search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WebSearch]:

    def make(url: str, provider: str = "tavily", **options: Any) -> WebSearch:
        for name, usual in LIMITS.items():
            monkeypatch.setattr(WebSearch, name, options.pop(name, usual))
        return WebSearch(provider, base_url=url, **{"cache": None, "rate_per_s": 1000.0, **options})

    return make

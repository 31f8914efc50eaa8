"""All providers by name; a new one is a subclass of ``Provider`` and an entry here."""

from __future__ import annotations

from rapo_rllib.web_search.brave import Brave
from rapo_rllib.web_search.provider import Provider
from rapo_rllib.web_search.searxng import SearXNG
from rapo_rllib.web_search.serper import Serper
from rapo_rllib.web_search.tavily import Tavily

PROVIDERS: dict[str, Provider] = {provider.name: provider for provider in (SearXNG(), Tavily(), Brave(), Serper())}

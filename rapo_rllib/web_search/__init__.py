"""Web search as a tool, with SearXNG, Tavily, Brave or Serper behind one interface. docs/web_search.md."""

from rapo_rllib.web_search.options import SearchOptions
from rapo_rllib.web_search.provider import Found, Hit, Provider, Request
from rapo_rllib.web_search.providers import PROVIDERS
from rapo_rllib.web_search.tool import WebSearch

__all__ = ["PROVIDERS", "Found", "Hit", "Provider", "Request", "SearchOptions", "WebSearch"]

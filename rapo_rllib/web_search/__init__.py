"""Web search as a tool, with SearXNG, Tavily, Brave or Serper behind one interface. docs/tools.md."""

"""What each provider answers to the same query: the fields that are read, and some beside them that are not."""

from typing import Any

KEY = "tvly-Secret_0123456789"
LOIRE, BRITANNICA = "https://en.wikipedia.org/wiki/Loire", "https://www.britannica.com/place/Loire-River"
TITLES = ("Loire - Wikipedia", "Loire River | France, Map, Length")

SEARXNG: dict[str, Any] = {
    "query": "longest river in France",
    "number_of_results": 0,
    "results": [
        {
            "url": LOIRE,
            "title": TITLES[0],
            "content": "The Loire is the longest river in France &amp; the 171st longest in the world.",
            "thumbnail": None,
            "engines": ["duckduckgo", "brave"],
        },
        {
            "url": BRITANNICA,
            "title": TITLES[1],
            "content": "It rises in the southern Massif Central\nand flows 1,020 km to the Bay of Biscay.",
        },
    ],
    "answers": [{"url": LOIRE, "answer": "The Loire, 1,006 km"}],
    "infoboxes": [{"infobox": "Loire", "id": LOIRE, "content": "longest river in France", "img_src": None}],
    "unresponsive_engines": [["google", "Suspended: too many requests"]],
}

TAVILY: dict[str, Any] = {
    "query": "longest river in France",
    "answer": "The Loire is the longest river in France.",
    "images": [],
    "results": [
        {
            "url": LOIRE,
            "title": TITLES[0],
            "content": "The Loire is the longest river in France & the 171st longest in the world.",
            "score": 0.93821,
            "raw_content": None,
        },
        {
            "url": BRITANNICA,
            "title": TITLES[1],
            "content": "It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay.",
            "score": 0.81025,
        },
    ],
    "response_time": 1.67,
}

BRAVE: dict[str, Any] = {
    "query": {"original": "longest river in France", "more_results_available": True},
    "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}], "top": [], "side": []},
    "type": "search",
    "web": {
        "type": "search",
        "results": [
            {
                "title": TITLES[0],
                "url": LOIRE,
                "description": "The <strong>Loire</strong> is the <strong>longest river in France</strong> &amp; "
                "the 171st longest in the world.",
                "profile": {"name": "Wikipedia", "url": LOIRE, "long_name": "en.wikipedia.org"},
                "extra_snippets": ["The source of the Loire is at Mont Gerbier de Jonc."],
            },
            {
                "title": TITLES[1],
                "url": BRITANNICA,
                "description": "It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay.",
            },
        ],
    },
}

SERPER: dict[str, Any] = {
    "searchParameters": {"q": "longest river in France", "type": "search", "num": 2, "engine": "google"},
    "answerBox": {"title": "Longest river in France", "answer": "Loire", "link": LOIRE},
    "organic": [
        {
            "title": TITLES[0],
            "link": LOIRE,
            "snippet": "The Loire is the longest river in France & the 171st longest in the world.",
            "sitelinks": [{"title": "Course", "link": f"{LOIRE}#Course"}],
            "position": 1,
        },
        {
            "title": TITLES[1],
            "link": BRITANNICA,
            "snippet": "It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay.",
            "position": 2,
        },
    ],
    "credits": 1,
}

ANSWERS = {"searxng": SEARXNG, "tavily": TAVILY, "brave": BRAVE, "serper": SERPER}

OBSERVATION = """[1] Loire - Wikipedia
https://en.wikipedia.org/wiki/Loire
The Loire is the longest river in France & the 171st longest in the world.

[2] Loire River | France, Map, Length
https://www.britannica.com/place/Loire-River
It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay."""

"""What each provider answers to the same query, with the fields that its documentation shows."""

from typing import Any

KEY = "tvly-Secret_0123456789"

SEARXNG: dict[str, Any] = {
    "query": "longest river in France",
    "number_of_results": 0,
    "results": [
        {
            "url": "https://en.wikipedia.org/wiki/Loire",
            "title": "Loire - Wikipedia",
            "content": "The Loire is the longest river in France &amp; the 171st longest in the world.",
            "thumbnail": None,
            "engine": "duckduckgo",
            "template": "default.html",
            "parsed_url": ["https", "en.wikipedia.org", "/wiki/Loire", "", "", ""],
            "img_src": "",
            "priority": "",
            "engines": ["duckduckgo", "brave"],
            "positions": [1, 2],
            "score": 3.0,
            "category": "general",
            "publishedDate": None,
        },
        {
            "url": "https://www.britannica.com/place/Loire-River",
            "title": "Loire River | France, Map, Length",
            "content": "It rises in the southern Massif Central\nand flows 1,020 km to the Bay of Biscay.",
            "engine": "brave",
            "template": "default.html",
            "parsed_url": ["https", "www.britannica.com", "/place/Loire-River", "", "", ""],
            "engines": ["brave"],
            "positions": [1],
            "score": 1.0,
            "category": "general",
        },
    ],
    "answers": [
        {
            "url": "https://en.wikipedia.org/wiki/Loire",
            "template": "answer/legacy.html",
            "engine": "duckduckgo",
            "parsed_url": None,
            "answer": "The Loire, 1,006 km",
        }
    ],
    "corrections": [],
    "infoboxes": [
        {
            "infobox": "Loire",
            "id": "https://en.wikipedia.org/wiki/Loire",
            "content": "longest river in France",
            "img_src": None,
            "urls": [{"title": "Wikipedia", "url": "https://en.wikipedia.org/wiki/Loire"}],
            "attributes": [{"label": "Length", "value": "1,006 km"}],
            "engine": "wikidata",
            "engines": ["wikidata"],
        }
    ],
    "suggestions": ["longest rivers in Europe"],
    "unresponsive_engines": [["google", "Suspended: too many requests"]],
}

TAVILY: dict[str, Any] = {
    "query": "longest river in France",
    "follow_up_questions": None,
    "answer": "The Loire is the longest river in France.",
    "images": [],
    "results": [
        {
            "url": "https://en.wikipedia.org/wiki/Loire",
            "title": "Loire - Wikipedia",
            "content": "The Loire is the longest river in France & the 171st longest in the world.",
            "score": 0.93821,
            "raw_content": None,
            "favicon": "https://en.wikipedia.org/favicon.ico",
        },
        {
            "url": "https://www.britannica.com/place/Loire-River",
            "title": "Loire River | France, Map, Length",
            "content": "It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay.",
            "score": 0.81025,
            "raw_content": None,
        },
    ],
    "response_time": 1.67,
    "usage": {"credits": 1},
    "request_id": "123e4567-e89b-12d3-a456-426614174111",
}

BRAVE: dict[str, Any] = {
    "query": {
        "original": "longest river in France",
        "show_strict_warning": False,
        "is_navigational": False,
        "is_news_breaking": False,
        "spellcheck_off": True,
        "country": "us",
        "bad_results": False,
        "should_fallback": False,
        "postal_code": "",
        "city": "",
        "header_country": "",
        "more_results_available": True,
        "state": "",
    },
    "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}], "top": [], "side": []},
    "type": "search",
    "web": {
        "type": "search",
        "results": [
            {
                "title": "Loire - Wikipedia",
                "url": "https://en.wikipedia.org/wiki/Loire",
                "is_source_local": False,
                "is_source_both": False,
                "description": "The <strong>Loire</strong> is the <strong>longest river in France</strong> &amp; "
                "the 171st longest in the world.",
                "page_age": "2025-06-05T10:04:25",
                "profile": {"name": "Wikipedia", "url": "https://en.wikipedia.org/wiki/Loire", "long_name": "en.wikipedia.org"},
                "language": "en",
                "family_friendly": True,
                "type": "search_result",
                "subtype": "generic",
                "meta_url": {"scheme": "https", "netloc": "en.wikipedia.org", "hostname": "en.wikipedia.org", "path": "› wiki"},
                "age": "June 5, 2025",
                "extra_snippets": ["The source of the Loire is at Mont Gerbier de Jonc."],
            },
            {
                "title": "Loire River | France, Map, Length",
                "url": "https://www.britannica.com/place/Loire-River",
                "is_source_local": False,
                "is_source_both": False,
                "description": "It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay.",
                "language": "en",
                "family_friendly": True,
                "type": "search_result",
                "subtype": "generic",
            },
        ],
        "family_friendly": True,
    },
}

SERPER: dict[str, Any] = {
    "searchParameters": {"q": "longest river in France", "type": "search", "num": 2, "engine": "google"},
    "answerBox": {
        "title": "Longest river in France",
        "answer": "Loire",
        "snippet": "The Loire is 1,006 km long.",
        "snippetHighlighted": ["Loire"],
        "link": "https://en.wikipedia.org/wiki/Loire",
    },
    "knowledgeGraph": {
        "title": "Loire",
        "type": "River in France",
        "website": "https://example.org/",
        "imageUrl": "https://example.org/loire.jpg",
        "description": "The Loire is the longest river in France.",
        "descriptionSource": "Wikipedia",
        "descriptionLink": "https://en.wikipedia.org/wiki/Loire",
        "attributes": {"Length": "1,006 km"},
    },
    "organic": [
        {
            "title": "Loire - Wikipedia",
            "link": "https://en.wikipedia.org/wiki/Loire",
            "snippet": "The Loire is the longest river in France & the 171st longest in the world.",
            "sitelinks": [{"title": "Course", "link": "https://en.wikipedia.org/wiki/Loire#Course"}],
            "position": 1,
        },
        {
            "title": "Loire River | France, Map, Length",
            "link": "https://www.britannica.com/place/Loire-River",
            "snippet": "It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay.",
            "date": "Jun 5, 2025",
            "attributes": {"Length": "1,020 km"},
            "position": 2,
        },
    ],
    "peopleAlsoAsk": [{"question": "Is the Loire longer than the Seine?", "snippet": "Yes.", "title": "", "link": ""}],
    "relatedSearches": [{"query": "longest rivers in Europe"}],
    "credits": 1,
}

ANSWERS = {"searxng": SEARXNG, "tavily": TAVILY, "brave": BRAVE, "serper": SERPER}

OBSERVATION = """[1] Loire - Wikipedia
https://en.wikipedia.org/wiki/Loire
The Loire is the longest river in France & the 171st longest in the world.

[2] Loire River | France, Map, Length
https://www.britannica.com/place/Loire-River
It rises in the southern Massif Central and flows 1,020 km to the Bay of Biscay."""

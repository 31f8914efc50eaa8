r"""Is an episode well-formed? By its final step, or by the rules of the released code over the whole text.

``whole_text``: thoughts are paired, and there is one; one pair of answer tags with a ``\boxed{...}`` inside; after every tool's
opening tag come its closing tag and a result, in this order. Text after the answer is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapo_rllib.protocol.steps import answer_ok, format_ok, last_box
from rapo_rllib.rewards.score import Episode


def well_formed(episode: Episode, check: str, tool_tags: Iterable[str], *, require_boxed: bool) -> bool:
    """Whether the episode passes ``check``, ``format_check`` of the reward."""
    if episode.settings.format == "native":  # there is no other format in which an answer could be given
        return answer_ok(episode.answer_text, require_boxed=require_boxed)
    if check == "final_step":
        return format_ok(episode.steps[-1].text, episode.settings, require_boxed=require_boxed)
    text, settings = episode.text, episode.settings
    return (
        text.count(f"<{settings.think_tag}>") == text.count(f"</{settings.think_tag}>") > 0
        and _answered(text, settings.answer_tag, require_boxed)
        and all(_calls_have_results(text, tag, settings.result_tag) for tag in tool_tags)
    )


def _answered(text: str, tag: str, require_boxed: bool) -> bool:
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return False
    start, end = text.find(opening), text.find(closing)
    return start < end and (not require_boxed or last_box(text[start:end]) is not None)


def _calls_have_results(text: str, tag: str, result_tag: str) -> bool:
    position = 0
    while (start := text.find(f"<{tag}>", position)) >= 0:
        for part in (f"</{tag}>", f"<{result_tag}>", f"</{result_tag}>"):
            position = text.find(part, start)
            if position < 0:
                return False
            start = position
    return True

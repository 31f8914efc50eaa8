"""The thoughts that a turn begins with, between the marks that the model's family has for them."""

from __future__ import annotations

from typing import NamedTuple

_GEMMA4 = ("<|channel>thought", "<channel|>")


class Thoughts(NamedTuple):
    """The marks around thoughts.

    Example: ``Thoughts("<think>", "</think>")``.
    """

    opening: str
    closing: str

    @classmethod
    def of(cls, template: str, tag: str) -> Thoughts:
        """Choose the marks of Gemma 4 where a chat template writes them, else the protocol's tags.

        >>> Thoughts.of("{{ '<|channel>thought' }}", "think")
        Thoughts(opening='<|channel>thought', closing='<channel|>')
        """
        return cls(*_GEMMA4) if _GEMMA4[0] in template else cls(f"<{tag}>", f"</{tag}>")

    @property
    def are_apart(self) -> bool:
        """Whether the template takes them as a field of the turn, not in its content."""
        return self == _GEMMA4

    def split(self, text: str, in_thought: bool) -> tuple[str, str]:
        """Split off the thoughts that a turn begins with (``in_thought``: its opening has begun one).

        In the rest a mark is text. A thought that does not end is all that there is.

        >>> Thoughts("<think>", "</think>").split("Add.</think>Write </think>.", in_thought=True)
        ('Add.</think>', 'Write </think>.')
        """
        end = 0
        while in_thought or text[end:].lstrip().startswith(self.opening):
            found = text.find(self.closing, end)
            if found < 0:
                return text, ""
            in_thought, end = False, found + len(self.closing)
        return text[:end], text[end:]

    def left_open(self, text: str) -> bool:
        """Whether ``text`` leaves a thought open, as openings of templates of thinking models do."""
        return text.rfind(self.opening) > text.rfind(self.closing)

    def tagged(self, thoughts: str, tag: str) -> str:
        """Return the thoughts between the protocol's tags.

        >>> Thoughts("<|channel>thought", "<channel|>").tagged("<|channel>thought Add.<channel|>", "think")
        '<think> Add.</think>'
        """
        return thoughts.replace(self.opening, f"<{tag}>").replace(self.closing, f"</{tag}>")

"""Chat templates: the text of a turn that is appended, cut out of a rendering, and its tokens.

    messages --template--> text --behind the mark in a dummy turn--> what is appended --Guard--> tokens

What others wrote cannot forge a turn: a special token in it is broken up before the template sees it, so that it becomes the
tokens of its characters.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from rapo_rllib.protocol.turns import Schema

Message = dict[str, Any]

_QUESTION: Message = {"role": "user", "content": "question"}


class Guard:
    """Encodes rendered text in which what others wrote was broken up by :meth:`safe`.

    Args:
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = [str(token) for token in tokenizer.get_added_vocab()]
        known = sorted({*added, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True)
        words = [re.escape(token) for token in known if token.strip() and len(token) > 1]
        self._tokens = re.compile("|".join(words)) if words else None
        self._cut = f"rapo{secrets.token_hex(8)}"  # passes through a template's `trim` and `tojson` as it is

    def safe(self, text: str) -> str:
        """``text`` with a cut in every added token, so that none is found when it is encoded."""
        if self._tokens is None:
            return text
        text, done = text.replace(self._cut, ""), ""
        while (found := self._tokens.search(text)) is not None:
            middle = found.start() + 1
            done, text = done + text[:middle] + self._cut, text[middle:]
        return done + text

    def safe_schema(self, part: Any) -> Any:
        """The same in all names and texts of a tool's schema."""
        if isinstance(part, Mapping):
            return {self.safe_schema(name): self.safe_schema(value) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return [self.safe_schema(value) for value in part]
        return self.safe(part) if isinstance(part, str) else part

    def plain(self, rendered: str) -> str:
        """Rendered text without the cuts."""
        return rendered.replace(self._cut, "")

    def encode(self, rendered: str, behind: str = "") -> list[int]:
        """Tokens of rendered text, each part between cuts alone; special tokens of the template are special.

        Args:
            rendered: by a template that was given safe texts.
            behind: a special token that it follows: some tokenizers treat the beginning of a text in their own way.
        """
        found: list[int] = []
        for part in rendered.split(self._cut):
            ids = self._tokenizer.encode(behind + part, add_special_tokens=False)
            found += ids[1:] if behind else ids
        return found


class ChatTemplate:
    """The chat template of one tokenizer, with tools.

    Args:
        tokenizer: with a chat template.
        schemas: of all tools.
        options: further variables of the template, such as ``enable_thinking``.
        end: the special token that ends a turn of the policy.

    Raises:
        ValueError: naming what the template lacks.
    """

    def __init__(self, tokenizer: Any, schemas: Sequence[Schema], options: Mapping[str, Any], end: str) -> None:
        self._tokenizer, self._schemas, self._options, self._end = tokenizer, list(schemas), dict(options), end
        self._mark = f"rapo{secrets.token_hex(8)}"
        self._dummy: Message = {"role": "assistant", "content": self._mark}
        if schemas:
            self._check_tools()
            self._choose_dummy()

    def render(self, messages: Sequence[Message], tools: Sequence[str] | None = None, opening: bool = False) -> str:
        """The text of a conversation.

        Args:
            messages: turns.
            tools: names of the tools that are shown; None: all.
            opening: with what opens the policy's next turn.

        Raises:
            ValueError: the template refuses it.
        """
        from jinja2.exceptions import TemplateError

        shown = [schema for schema in self._schemas if tools is None or schema["function"]["name"] in tools]
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=shown or None, add_generation_prompt=opening, tokenize=False, **self._options
            )
        except (TemplateError, TypeError, KeyError) as error:  # its `raise_exception`, or a field that it misses
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"protocol.format = 'native': the model's chat template refuses turns of {roles}: {error}"
            ) from error
        return text

    def behind_turn(self, messages: Sequence[Message], opening: bool = False) -> str:
        """The text of turns that follow a turn of the policy: from behind the token that ends it."""
        rendered = self.render([_QUESTION, self._dummy, *messages], opening=opening)
        return rendered.rpartition(self._mark)[2].partition(self._end)[2]

    def turn(self, message: Message) -> str:
        """The text of a turn of the policy, from behind its opening to the token that ends it.

        Raises:
            ValueError: the template refuses it, or opens a turn with more than it writes of one that is there, a thought say.
        """
        rendered, opened = self.render([_QUESTION, message]), self.render([_QUESTION], opening=True)
        if not rendered.startswith(opened):
            raise ValueError("the chat template opens a turn of the policy with more than it writes of one that is there")
        return rendered[len(opened) :].partition(self._end)[0] + self._end

    def opening(self) -> str:
        """The text that opens the policy's turn; for many templates the role's header."""
        closed = self.render([_QUESTION])
        return self.render([_QUESTION], opening=True).removeprefix(closed)

    def _check_tools(self) -> None:
        bare = self._tokenizer.apply_chat_template([_QUESTION], add_generation_prompt=True, tokenize=False, **self._options)
        if self.render([_QUESTION], opening=True) == bare:
            raise ValueError(
                "protocol.format = 'native': the model's chat template does not show tools (it renders the same with and "
                "without them); name a model whose template has them, or set protocol.format to 'tags'"
            )

    def _choose_dummy(self) -> None:
        """A turn of plain text, or one that calls a tool, where the template asks for that before a result."""
        name = self._schemas[0]["function"]["name"]
        function = {"name": name, "arguments": {"mark": self._mark}}
        calling = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "0" * 9, "type": "function", "function": function}],
        }
        refused = ""
        for dummy in (self._dummy, calling):
            self._dummy = dummy
            try:
                if "probe" in self.behind_turn([tool_message("probe", name, "0" * 9)]):
                    return
            except ValueError as error:
                refused = f": {error}"
        raise ValueError(
            f"protocol.format = 'native': the model's chat template does not show what a tool returned{refused}; set "
            "protocol.format to 'tags'"
        )


def tool_message(content: str, name: str, id: str) -> Message:
    """The turn of one tool's result."""
    return {"role": "tool", "name": name, "tool_call_id": id, "content": content}

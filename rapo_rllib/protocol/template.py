"""Chat templates: text and tokens of a turn that is appended, cut out of a rendered conversation.

    messages --template--> text --behind the mark in a dummy turn--> what is appended --Guard--> tokens

Text that others wrote cannot forge a turn: a special token in it is broken up before the template sees the text, and so becomes
the tokens of its characters.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rapo_rllib.protocol.turns import Call, Schema

Message = dict[str, Any]

_GEMMA4 = ("<|channel>thought", "<channel|>")  # marks around thoughts
_QUESTION: Message = {"role": "user", "content": "question"}
# A call to try parsers with: they must read a text with quotes, and a number as a number
SAMPLE = Call("sample_weather", {"city": 'Köln "Dom"', "days": 2}, "0" * 9)
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
_SAMPLE = {"name": SAMPLE.name, "description": "Tells the weather.", "parameters": _PARAMETERS}
SAMPLE_SCHEMA: Schema = {"type": "function", "function": _SAMPLE}


class Thoughts(NamedTuple):
    """The marks around thoughts.

    Example: ``Thoughts("<think>", "</think>")``.
    """

    opening: str
    closing: str

    @classmethod
    def of(cls, template: str, tag: str) -> Thoughts:
        """Choose the marks of Gemma 4 if the chat template writes them, else the protocol's tags.

        >>> Thoughts.of("{{ '<|channel>thought' }}", "think")
        Thoughts(opening='<|channel>thought', closing='<channel|>')
        """
        return cls(*_GEMMA4) if _GEMMA4[0] in template else cls(f"<{tag}>", f"</{tag}>")

    @property
    def are_apart(self) -> bool:
        """Whether the template takes thoughts as a field of the turn, not in its content."""
        return self == _GEMMA4

    def split(self, text: str, in_thought: bool) -> tuple[str, str]:
        """Split off the thoughts that a turn begins with (``in_thought``: the turn's opening has begun a thought).

        Marks in the rest are plain text. If a thought does not end, the whole text counts as thoughts and the rest is empty.

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
        """Return whether ``text`` leaves a thought open, as a turn's opening does in templates of thinking models."""
        return text.rfind(self.opening) > text.rfind(self.closing)

    def tagged(self, thoughts: str, tag: str) -> str:
        """Replace the marks around thoughts by the protocol's tags.

        >>> Thoughts("<|channel>thought", "<channel|>").tagged("<|channel>thought Add.<channel|>", "think")
        '<think> Add.</think>'
        """
        return thoughts.replace(self.opening, f"<{tag}>").replace(self.closing, f"</{tag}>")


class Guard:
    """Encoder of rendered text in which :meth:`safe` has broken up the special tokens that others wrote.

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
        """Cut every added token in ``text``, so that none is found when the text is encoded."""
        if self._tokens is None:
            return text
        text, done = text.replace(self._cut, ""), ""
        while (found := self._tokens.search(text)) is not None:
            middle = found.start() + 1
            done, text = done + text[:middle] + self._cut, text[middle:]
        return done + text

    def safe_schema(self, part: Any) -> Any:
        """Make all names and texts of a tool's schema, or of messages, safe."""
        if isinstance(part, Mapping):
            return {self.safe_schema(name): self.safe_schema(value) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return [self.safe_schema(value) for value in part]
        return self.safe(part) if isinstance(part, str) else part

    def plain(self, rendered: str) -> str:
        """Remove the cuts from rendered text."""
        return rendered.replace(self._cut, "")

    def encode(self, rendered: str, behind: str = "") -> list[int]:
        """Encode rendered text, each part between cuts by itself; special tokens that the template wrote stay special.

        Args:
            rendered: text that a template made of safe texts.
            behind: a special token to encode each part behind: some tokenizers treat the beginning of a text differently.
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
        self._behind_calls = self._dummy  # the dummy turn, if a tool's result follows
        self.call_end = end  # the token that ends a turn with calls
        if schemas:
            self._check_tools()
            with suppress(ValueError):  # a template may take no calls at all
                self.call_end = self._end_of_calls()
            self._choose_dummy()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[str] | None = None,
        opening: bool = False,
        own: Sequence[Schema] = (),
    ) -> str:
        """Render the text of a conversation.

        Args:
            messages: turns.
            tools: names of the tools that are shown; None: all.
            opening: whether to add the opening of the policy's next turn.
            own: schemas that are shown in place of those of the same names.

        Raises:
            ValueError: the template refuses the turns.
        """
        named = {schema["function"]["name"]: schema for schema in (*self._schemas, *own)}
        shown = [named[name] for name in named if tools is None or name in tools]
        return self._render(messages, shown, opening)

    def _render(self, messages: Sequence[Message], shown: Sequence[Schema], opening: bool = False) -> str:
        from jinja2.exceptions import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(shown) or None,
                add_generation_prompt=opening,
                tokenize=False,
                **self._options,
            )
        except (TemplateError, TypeError, KeyError) as error:  # its `raise_exception`, or a field that it misses
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"protocol.format = 'native': the model's chat template refuses turns of {roles}: {error}"
            ) from error
        return text

    def behind_turn(self, messages: Sequence[Message], opening: bool = False) -> str:
        """Render turns that follow a turn of the policy: the text behind the token that ends the policy's turn."""
        dummy, end = self._dummy, self._end
        if messages and messages[0]["role"] == "tool":
            dummy, end = self._behind_calls, self.call_end
            if "tool_calls" in dummy:  # some templates take the tool's name from there
                dummy = self.calling(Call(messages[0].get("name", SAMPLE.name), {"mark": self._mark}, SAMPLE.id))
        return self.render([_QUESTION, dummy, *messages], opening=opening).rpartition(self._mark)[2].partition(end)[2]

    def turn(self, message: Message) -> str:
        """Render a turn of the policy, from behind its opening to the token that ends the turn.

        Raises:
            ValueError: the template refuses the turn, or opens new turns with text (e.g. a thought) that this one lacks.
        """
        rendered, opened = self.render([_QUESTION, message]), self.render([_QUESTION], opening=True)
        if not rendered.startswith(opened):
            raise ValueError("the chat template opens a turn of the policy with more than it writes of one that is there")
        end = self.call_end if message.get("tool_calls") else self._end
        return rendered[len(opened) :].partition(end)[0] + end

    def calling(self, call: Call, content: str = "") -> Message:
        """Return a turn of the policy that calls a tool."""
        called = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        return {"role": "assistant", "content": content, "tool_calls": [called]}

    def sample_turn(self) -> tuple[str, str]:
        """Render a turn that calls :data:`SAMPLE`, split into the opening of a turn and the rest. Raises ``ValueError``."""
        whole = self._render([_QUESTION, self.calling(SAMPLE)], [SAMPLE_SCHEMA])
        common = num_common(whole, self._sampled([]))
        begin = min(common, num_common(whole, self._render([_QUESTION], [SAMPLE_SCHEMA])))
        return whole[begin:common], whole[common:].partition(self.call_end)[0]

    def keeps_thoughts(self, thoughts: Thoughts, behind_user: bool) -> bool:
        """Return whether a turn's thoughts stay if a tool's (``behind_user``: user's) turn follows. Raises ``ValueError``."""
        turn, behind = self.calling(SAMPLE), tool_message("8", SAMPLE.name, SAMPLE.id)
        if behind_user:
            turn, behind = {"role": "assistant", "content": "8"}, {"role": "user", "content": "next"}
        opened, (begin, closing) = self.opening(), thoughts
        if closing in opened:  # the opening has an empty thought
            turn["content"] = f"{begin}{opened.partition(begin)[2]}{turn['content']}"
            asked, shown = self._sampled([]), self._sampled([turn, behind])
            return shown.count(closing) == asked.count(closing) + 1
        ways: list[Message] = [{"reasoning_content": self._mark}, {"thinking": self._mark}]  # a server may split it off
        if not thoughts.are_apart:
            ways.append({"content": f"{begin}\n{self._mark}\n{closing}\n\n{turn['content']}"})
        return any(self._mark in self._sampled([{**turn, **way}, behind]) for way in ways)

    def _sampled(self, messages: Sequence[Message]) -> str:
        return self._render([_QUESTION, *messages], [SAMPLE_SCHEMA], opening=True)

    def opening(self) -> str:
        """Return the text that opens the policy's turn; for many templates the role's header."""
        closed = self.render([_QUESTION])
        return self.render([_QUESTION], opening=True).removeprefix(closed)

    def opening_behind(self, message: Message) -> str:
        """Return the text that opens the policy's turn behind ``message``, for example a tool's result."""
        return self.behind_turn([message], opening=True).removeprefix(self.behind_turn([message]))

    def _check_tools(self) -> None:
        bare = self._tokenizer.apply_chat_template([_QUESTION], add_generation_prompt=True, tokenize=False, **self._options)
        if self.render([_QUESTION], opening=True) == bare:
            raise ValueError(
                "protocol.format = 'native': the model's chat template does not show tools (it renders the same with and "
                "without them); name a model whose template has them, or set protocol.format to 'tags'"
            )

    def _end_of_calls(self) -> str:
        """Find the token that ends a turn with calls: the usual one, or another that the policy writes before a result."""
        turns = [_QUESTION, self.calling(SAMPLE)]
        whole = self._render(turns, [SAMPLE_SCHEMA])
        if self._end in whole[whole.rfind(SAMPLE.name) :]:
            return self._end
        followed = self._render([*turns, tool_message("8", SAMPLE.name, SAMPLE.id)], [SAMPLE_SCHEMA])
        behind = followed[len(whole) :] if followed.startswith(whole) else ""
        begins = self.opening()  # a token that begins turns does not end one
        near = [text and self._tokenizer.encode(text, add_special_tokens=False) for text in (behind, whole)]
        ends = [
            token
            for token in (*near[0][:1], *near[1][-1:])
            if not self._tokenizer.decode([token], skip_special_tokens=True) and self._tokenizer.decode([token]) not in begins
        ]
        return str(self._tokenizer.decode(ends[:1])) if ends else self._end

    def _choose_dummy(self) -> None:
        """Choose a dummy turn of plain text, or one that calls a tool if the template requires a call before a result."""
        name = self._schemas[0]["function"]["name"]
        calling = self.calling(Call(name, {"mark": self._mark}, SAMPLE.id))
        refused, plain = "", self._dummy
        for dummy in (plain, calling) if self.call_end == self._end else (calling,):
            self._behind_calls = dummy
            try:
                if "probe" in self.behind_turn([tool_message("probe", name, "0" * 9)]):
                    self._dummy = dummy if self.call_end == self._end else plain
                    return
            except ValueError as error:
                refused = f": {error}"
        raise ValueError(
            f"protocol.format = 'native': the model's chat template does not show what a tool returned{refused}; set "
            "protocol.format to 'tags'"
        )


def num_common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Count the items, or characters, that both sequences begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def tool_message(content: str, name: str, id: str) -> Message:
    """Return the turn of one tool's result."""
    return {"role": "tool", "name": name, "tool_call_id": id, "content": content}

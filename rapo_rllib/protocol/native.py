r"""The model's own form of tool calls: its chat template, calls as its family writes them, results as tool turns.

    prompt | turn of the policy <end> | tool turns [ | a retrieved step as a turn ] | opening | turn of the policy <end> | ...

Tokens in, tokens out: generated tokens stay as they are; an appended turn is what the template writes behind a dummy turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.calls import JSON, CallReader, MakeReader, ReadCalls, expected_form, read_json, read_object
from rapo_rllib.protocol.chat import end_ids, said_before, template_end_ids
from rapo_rllib.protocol.parsers import choose_parser, reader_of
from rapo_rllib.protocol.steps import parse_step
from rapo_rllib.protocol.template import ChatTemplate, Guard, Message, Thoughts, tool_message
from rapo_rllib.protocol.turns import Call, Observation, Piece, Schema, Turn, in_tags, text_argument
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question

_SYSTEM_PROMPT = "Solve the question step by step. Call tools where they help. Give the final answer as \\boxed{your answer}."


class NativeProtocol:
    """Builder of prompts and appended turns for one tokenizer in the native format, and reader of the policy's turns.

    Args:
        tokenizer: a Hugging Face tokenizer whose chat template takes ``tools``.
        settings: prompts and options.
        schemas: of the environment's tools.
        make_reader: makes a reader of calls from parser, tokenizer and schemas; None: calls are plain JSON.
        game: a turn without a call is a move, not an answer.

    Raises:
        ValueError: the template or the tokenizer does not support the format; the message names what is missing.
    """

    shows_in_turn = False

    def __init__(
        self,
        tokenizer: Any,
        settings: ProtocolSettings,
        schemas: Sequence[Schema] = (),
        make_reader: MakeReader | None = None,
        game: bool = False,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "protocol.format = 'native': the model's tokenizer has no chat template; name an instruct model, or set "
                "protocol.format to 'tags'"
            )
        self.tokenizer, self.settings = tokenizer, settings
        self.end_ids = end_ids(tokenizer)
        self._schemas = {schema["function"]["name"]: schema for schema in schemas}
        self.tools = tuple(self._schemas)
        self._game = game
        self._thoughts = Thoughts.of(str(tokenizer.chat_template), settings.think_tag)
        self._guard = Guard(tokenizer)
        self._end = self._end_of_turn()
        self._template = ChatTemplate(tokenizer, self._guard.safe_schema(schemas), settings.template_options, self._end)
        self.end_ids = list(dict.fromkeys([*self.end_ids, *self._guard.encode(self._template.call_end)]))
        self._read_calls = self._reader(make_reader, schemas)
        self.system_prompt = _SYSTEM_PROMPT if settings.system_prompt is None else settings.system_prompt
        opening = self._template.opening()
        self._begun = opening[opening.rfind(self._thoughts.opening) :] if self._thoughts.left_open(opening) else ""  # a thought
        self.opening, self._opened_by_user = self._openings(opening)
        self.prompt_ids("question")  # a template that refuses it raises here, before anything heavy starts

    def _openings(self, opening: str) -> tuple[Piece, str]:
        """Return what opens every turn, and what opens only turns behind a user's: some templates open none behind a result."""
        if not self._schemas or self._template.opening_behind(self._result()):
            return Piece(self._guard.encode(opening, self._end), opening), ""
        return Piece((), ""), opening

    def _result(self) -> Message:
        return tool_message("result", next(iter(self._schemas), "tool"), "0" * 9)

    def _reader(self, make_reader: MakeReader | None, schemas: Sequence[Schema]) -> CallReader:
        asked = self.settings.tool_parser
        self.parser = JSON if asked == "auto" or make_reader is None else asked  # a named one is tried before there are tools
        if self._game and not schemas:
            return ReadCalls
        if make_reader is None:
            return read_json
        if schemas:
            self.parser = choose_parser(asked, self.tokenizer, self._template, self._thoughts, make_reader)
        return reader_of(self.parser, self.tokenizer, schemas, make_reader)

    def _sample(self) -> str:
        """Render a call as the template writes it; empty: the template writes none."""
        try:
            return self._template.sample_turn()[1].rpartition(self._thoughts.closing)[2].strip()
        except ValueError:
            return ""

    def _end_of_turn(self) -> str:
        if not (ends := template_end_ids(self.tokenizer)):
            raise ValueError(
                "protocol.format = 'native': the model's chat template ends a turn with text instead of a special token, so an "
                "observation could forge one; set protocol.format to 'tags'"
            )
        self.end_ids = list(dict.fromkeys([*ends, *self.end_ids]))
        eom = self.tokenizer.get_vocab().get("<|eom_id|>")  # ends a turn of Llama 3.x that waits for a tool's result
        self.end_ids += [eom] if eom is not None and eom not in self.end_ids else []
        text: str = self.tokenizer.decode(self.end_ids[:1], skip_special_tokens=False)
        return text

    def served_otherwise(self) -> str:
        """Return a warning if the chat template, which servers use, drops thoughts that training prompts keep; else empty."""
        by_user = not self._schemas  # only in games does a user's turn follow the policy's
        if (by_user and not self._game) or self._keeps(by_user) is not False:
            return ""
        return (
            f"protocol.format = 'native': training keeps the thoughts ({self._thoughts.opening}) of earlier turns in prompts; "
            f"the chat template drops them behind a {'user' if by_user else 'tool'}'s turn: a server that renders by it gives "
            "other prompts"
        )

    def _keeps(self, behind_user: bool) -> bool | None:
        """Return whether the template keeps thoughts of earlier turns; None: it has no thoughts, or refuses such turns."""
        if self._thoughts.closing not in str(self.tokenizer.chat_template):
            return None
        try:
            return self._template.keeps_thoughts(self._thoughts, behind_user)
        except ValueError:
            return None

    @cached_property
    def drops_thoughts(self) -> bool:
        """Whether the template drops the thoughts of a turn once other turns follow."""
        return self._keeps(True) is False or (bool(self._schemas) and self._keeps(False) is False)

    @cached_property
    def _writes_thoughts(self) -> bool:
        return bool(self._keeps(behind_user=False))  # behind a tool's turn, if anywhere

    def prompt_ids(self, question: str, given: Question | None = None) -> list[int]:
        """Encode the whole prompt, up to where the policy starts to write. ``[P]``."""
        tools, own = (None, ()) if given is None else (given.tools, given.schemas)
        for schema in own:
            self._check_own(schema["function"])
        messages, shown = said_before(question, given, self.system_prompt, self.settings), self._guard.safe_schema(own)
        return self._guard.encode(self._template.render(self._guard.safe_schema(messages), tools, opening=True, own=shown))

    def _check_own(self, function: Mapping[str, Any]) -> None:
        """Refuse a row's schema whose parameters differ from the job's tool: the schema is shown, but the tool is called."""
        job = self._schemas.get(function["name"], {"function": function})["function"]
        taken, shown = (list(one["parameters"].get("properties") or {}) for one in (job, function))
        if sorted(taken) != sorted(shown):
            raise ValueError(
                f"tools: the row's schema of {function['name']!r} has the parameters {shown}, the job's tool takes {taken}: "
                "correct it, or give its name alone"
            )

    def conversation(self, messages: Sequence[Message]) -> Piece:
        """Render a conversation as the template writes it, up to where the policy starts to write.

        Args:
            messages: turns; a turn of the policy may have ``thoughts``, as the policy wrote them.
        """
        rendered = self._template.render([self._with_thoughts(**message) for message in messages], opening=True)
        return Piece(self._guard.encode(rendered), self._guard.plain(rendered))

    def _with_thoughts(self, thoughts: str = "", **message: Any) -> Message:
        """Make a message safe, and put its thoughts where the template looks for them."""
        safe: Message = self._guard.safe_schema(message)
        if message["role"] != "assistant":
            return safe
        if thoughts:
            thoughts = self._thoughts.tagged(self._begun + thoughts, self.settings.think_tag)
        return {**safe, **self._parts((thoughts if self._writes_thoughts else "") + message["content"])}

    def turns(self, messages: Sequence[Message], ended: bool) -> Piece:
        """Render the turns that follow the policy's turn, after the end of the policy's turn unless that has ``ended``."""
        piece = self._behind_turn(self._guard.safe_schema(messages))
        called = bool(messages) and messages[0]["role"] == "tool"
        return piece if ended else self._behind(self._template.call_end if called else self._end, piece)

    def stops(self, closing: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        """Return no stop strings: a turn ends with its end token."""
        return (), None

    def read(self, token_ids: Sequence[int], text: str, spill: str, finish: str) -> Turn:
        """Read one turn from its tokens; special tokens are kept as text, since some model families mark calls with them."""
        ended = bool(token_ids) and token_ids[-1] in self.end_ids
        written = self._text(token_ids[:-1] if ended else token_ids)
        behind = self._text(token_ids[-1:]) if ended else ""
        thoughts, said = self._thoughts.split(written, in_thought=bool(self._begun))
        if not ended:  # cut off by a budget: neither a call nor an answer
            return Turn.of(written, content=written, thoughts=thoughts, record=written, spill=behind, native=True)
        found = self._read_calls(said)
        calls = tuple(_read_call(name, arguments, index) for index, (name, arguments) in enumerate(found.calls))
        if found.broken:  # one more call, with the problem, behind those that were read
            problem = f"the tool call could not be read: {expected_form(self.tools, self.parser, self._sample())}"
            calls = (*calls, Call("", {}, _call_id(len(calls)), problem))
        content = found.content.strip()
        answer = content if content and not calls and not self._game else None
        tagged = self._thoughts.tagged(self._begun.rstrip() + thoughts, self.settings.think_tag)
        record = self._record(tagged, found.content, calls, answer)
        thoughts += said.removesuffix(said.lstrip()) if thoughts else ""  # blanks behind them, as some templates write
        read = {"calls": calls, "content": content, "thoughts": thoughts, "answer": answer}
        return Turn.of(written, **read, record=record, spill=behind, native=True)

    def _text(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _record(self, thoughts: str, said: str, calls: Sequence[Call], answer: str | None) -> str:
        if answer is not None:
            tag = self.settings.answer_tag
            return f"{thoughts}<{tag}>{answer}</{tag}>"
        written = "\n".join(in_tags(call, self._schemas.get(call.name)) for call in calls if not call.problem)
        return thoughts + (said.rstrip() + "\n" if said.strip() and written else said.strip()) + written

    def written(self, step: str) -> Piece:
        """Write a step as the model's own turn: a call in the template's form, an answer without tags; without tools, the text.

        Raises:
            RequestError: the step neither answers nor calls one tool, or its written form is not read back as the same.
        """
        parsed = parse_step(step, self.settings, list(self._schemas))
        tool = parsed.tool_tag
        tag = self.settings.answer_tag if parsed.answer is not None else tool
        said = step if tag is None else step.rpartition(f"<{tag}>")[0]
        if parse_step(said, self.settings, list(self._schemas)).complete:
            raise RequestError(f"a step has more than one call or answer, where a turn has one: {step[:200]}")
        parts = self._parts((said + (parsed.answer or "")).strip())
        message: Message = {"role": "assistant", **parts}
        meant = [] if tool is None else [(tool, self._arguments(tool, parsed.tool_input or ""))]
        for name, arguments in meant:
            message = {**self._template.calling(Call(name, self._guard.safe_schema(arguments), _call_id(0))), **parts}
        try:
            piece = self._piece(self._template.turn(message))
        except ValueError as error:
            raise RequestError(str(error)) from error
        turn = self.read(piece.token_ids, "", "", "eos")
        read = [(call.name, dict(call.arguments)) for call in turn.calls]
        if read != meant or (self._schemas and not meant and parsed.answer is None):
            raise RequestError(f"a step is read as the calls {read}: {piece.text[:200]}")
        return piece

    def _parts(self, text: str) -> Message:
        """Return thoughts and content of a turn, as the template takes them."""
        tag = self.settings.think_tag
        if not self._thoughts.are_apart:
            return {"content": self._safe_but_thoughts(text)}
        thoughts, said = Thoughts(f"<{tag}>", f"</{tag}>").split(text, in_thought=False)
        thought = self._guard.safe(re.sub(f"</?{re.escape(tag)}>", "", thoughts).strip())
        apart = {"thinking": thought, "reasoning_content": thought} if thought else {}
        return {"content": self._guard.safe(said.strip()), **apart}

    def _safe_but_thoughts(self, text: str) -> str:
        """Make a text safe, all but the tags around thoughts, which are the template's own."""
        tag = self.settings.think_tag
        return "".join(
            part if part in (f"<{tag}>", f"</{tag}>") else self._guard.safe(part)
            for part in re.split(f"(</?{re.escape(tag)}>)", text)
        )

    def _arguments(self, tool: str, text: str) -> dict[str, Any]:
        """Read the arguments of a call in tags that :func:`in_tags` has written."""
        name, read = text_argument(self._schemas[tool]), read_object(text)[0]
        return {name or "": text} if read is None else read

    def observation(self, observation: str, turn: Turn) -> Piece:
        """Render an observation as one tool turn per call, or as a user turn if the policy called nothing."""
        parts = observation.parts if isinstance(observation, Observation) else (str(observation),)
        if not turn.calls:
            return self._behind_turn([{"role": "user", "content": self._guard.safe(str(observation))}])
        if len(parts) != len(turn.calls):  # the environment answers all calls at once
            parts = (str(observation), *[""] * (len(turn.calls) - 1))
        piece = self._behind_turn(
            [
                tool_message(self._guard.safe(part), self._guard.safe(call.name), call.id)
                for part, call in zip(parts, turn.calls, strict=True)
            ]
        )
        end = self._template.call_end
        ended = end == self._end or turn.spill in ("", end)
        return piece if ended else self._behind(end, piece)  # the policy ended its turn like one without calls

    def retrieved(self, trace: str) -> Piece:
        """Render one sentence and a step trace as a user turn of their own."""
        text = self._guard.safe(f"{self.settings.retrieval_sentence}\n{trace.strip()}")
        shown: Message = {"role": "user", "content": text}
        before = self._template.behind_turn([self._result()])
        behind = self._template.behind_turn([self._result(), shown]).removeprefix(before)
        return self._piece(behind + self._opened_by_user)

    def _behind(self, end: str, piece: Piece) -> Piece:
        return Piece([*self._guard.encode(end), *piece.token_ids], end + piece.text)

    def _behind_turn(self, messages: Sequence[Message]) -> Piece:
        by_other = bool(messages) and messages[-1]["role"] != "tool"
        return self._piece(self._template.behind_turn(messages) + (self._opened_by_user if by_other else ""))

    def _piece(self, rendered: str) -> Piece:
        return Piece(self._guard.encode(rendered, self._end), self._guard.plain(rendered))


def _call_id(index: int) -> str:
    """Make an id of nine digits: Mistral's template takes only nine letters or digits."""
    return f"{index + 1:09d}"


def _read_call(name: str, arguments: str, index: int) -> Call:
    name = name.encode("utf-8", "replace").decode()
    read, problem = read_object(arguments)
    got = f", got {arguments[:80]}" if problem.endswith("object") else ""
    return Call(name, read or {}, _call_id(index), problem and f"the arguments of {name} {problem}{got}")

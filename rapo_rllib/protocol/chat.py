"""The tags format: question to prompt tokens; observations and step traces to tokens that are appended. algorithm.md section 2.

Every piece is encoded once, by itself, and appended: what the policy generated is never decoded and encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.protocol.turns import Piece, Schema, Turn, text_argument
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question

_TOOL_LINES = {
    "python": "<python>code</python> runs Python and shows what it prints.",
    "search": "<search>query</search> searches for passages.",
}

_MARK = "rapo-answer"

_SYSTEM_PROMPT = (
    "Solve the question step by step. You may think inside <{think}>...</{think}>. You can call tools:\n{tools}\n"
    "The output of a call comes back inside <{result}>...</{result}>. Sometimes a step of another solver is shown inside "
    "<{retrieve}>...</{retrieve}>; use it if it helps. Finish with <{answer}>\\boxed{{your answer}}</{answer}>."
)


def default_system_prompt(settings: ProtocolSettings, tool_tags: Sequence[str], schemas: Sequence[Schema] = ()) -> str:
    """Build the system prompt that explains the protocol and the tools; ``schemas``: of tools that take more than a text."""
    known = {schema["function"]["name"]: schema for schema in schemas}
    lines = [_TOOL_LINES.get(tag) or _tool_line(tag, known.get(tag)) for tag in tool_tags]
    return _SYSTEM_PROMPT.format(
        think=settings.think_tag,
        tools="\n".join(lines) or "(no tools)",
        result=settings.result_tag,
        retrieve=settings.retrieve_tag,
        answer=settings.answer_tag,
    )


def _tool_line(tag: str, schema: Schema | None) -> str:
    if schema is None or text_argument(schema) is not None:
        return f"<{tag}>input</{tag}> calls the tool {tag}."
    parameters = json.dumps(schema["function"]["parameters"], ensure_ascii=False)
    return f"<{tag}>JSON</{tag}>: {schema['function']['description']} The JSON object has this schema: {parameters}"


def said_before(
    question: str, given: Question | None, system_prompt: str | None, settings: ProtocolSettings
) -> list[dict[str, Any]]:
    """List the turns before the policy's: system prompts of job and row, examples, earlier turns of the row, the question."""
    turns = [] if given is None else given.messages
    own = [turn["content"] for turn in turns if turn["role"] == "system"]
    system = "\n\n".join(filter(None, [system_prompt, *own]))
    template = settings.question_template
    messages = [{"role": "system", "content": system}] if system else []
    for example_question, example_response in settings.examples:
        shown = template.replace("{question}", example_question)
        messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": example_response}]
    messages += [turn for turn in turns if turn["role"] != "system"]
    messages.append({"role": "user", "content": template.replace("{question}", question)})
    return messages


def without_spill(text: str, spill: str) -> str:
    r"""Cut from the start of ``text`` the ``spill``, which the policy's last token has already written.

    A closing tag can end inside a token: ``</python><`` already holds the ``<`` of ``<result>``, and ``</python>\n`` the
    newline before it. The token stays as it was sampled, so the characters are left out of what follows.

    >>> without_spill("\n<result>8</result>", "<")
    'result>8</result>'
    """
    if text.startswith(spill):
        return text[len(spill) :]
    bare, bare_spill = text.lstrip(), spill.lstrip()
    if bare_spill and bare.startswith(bare_spill):
        return bare[len(bare_spill) :]
    return text


class ChatProtocol:
    """Builder of prompts and appended pieces for one tokenizer, in the tags format.

    Args:
        tokenizer: a Hugging Face tokenizer; without a chat template a plain ``Question: ... / Answer:`` form is used.
        settings: tags, system prompt and worked examples.
        tool_tags: tags of the tools that the environment offers, for the system prompt.
        schemas: of the tools that have one, for the system prompt.
    """

    opening = Piece((), "")  # the policy goes on in the turn that it began
    shows_in_turn = True

    def __init__(
        self, tokenizer: Any, settings: ProtocolSettings, tool_tags: Sequence[str] = (), schemas: Sequence[Schema] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.settings, self.tools = settings, tuple(tool_tags)
        self.system_prompt = settings.system_prompt
        if self.system_prompt is None:
            self.system_prompt = default_system_prompt(settings, tool_tags, schemas)
        self.end_ids = end_ids(tokenizer)  # tokens that end the policy's turn, the usual one first

    def messages(self, question: str, given: Question | None = None) -> list[dict[str, Any]]:
        """List the turns before the policy's: system prompt, worked examples, turns that a row gives, the question."""
        return said_before(question, given, self.system_prompt, self.settings)

    def prompt_ids(self, question: str, given: Question | None = None) -> list[int]:
        """Encode the whole prompt, up to where the policy starts to write. ``[P]``."""
        messages = self.messages(question, given)
        if not getattr(self.tokenizer, "chat_template", None):
            return list(self.tokenizer.encode(_plain_prompt(messages)))
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Encode one appended piece, by itself.

        The output of a tool and a step trace are plain text: a ``<|im_end|>`` in them becomes the tokens of its characters, not
        the special token, which would end the turn.
        """
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)) if text else []

    def retrieved_text(self, trace: str) -> str:
        """Render a step trace as the policy sees it: one sentence, then the trace in its own tag."""
        tag = self.settings.retrieve_tag
        return f"{self.settings.retrieval_sentence}\n<{tag}>\n{trace.strip()}\n</{tag}>\n"

    def stops(self, closing: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
        """Return all closing tags, and the answer's tag, behind which the policy is asked for the end of its turn."""
        return closing, self._closing_tag

    @property
    def _closing_tag(self) -> str:
        return f"</{self.settings.answer_tag}>"

    def read(self, token_ids: Sequence[int], text: str, spill: str, finish: str) -> Turn:
        """Make a turn of the text as it is: the environment finds the tags in it."""
        return Turn.of(text, spill=spill, answer=text if self._closing_tag in text else None)

    def written(self, step: str) -> Piece:
        """Encode the text of a step as it is."""
        return Piece(self.encode(step), step)

    def observation(self, observation: str, turn: Turn) -> Piece:
        """Encode a result in its tags, without the part that the policy's last token has already written."""
        text = without_spill(render_observation(observation, self.settings), turn.spill)
        return Piece(self.encode(text), text)

    def retrieved(self, trace: str) -> Piece:
        """Encode a step trace in its tags."""
        text = self.retrieved_text(trace)
        return Piece(self.encode(text), text)


def end_ids(tokenizer: Any) -> list[int]:
    """Return the tokens that end a turn: that of the chat template, if it writes one, and the tokenizer's EOS.

    They differ for base models: Qwen2.5's EOS is ``<|endoftext|>``, and its template ends a turn with ``<|im_end|>``.
    """
    eos = getattr(tokenizer, "eos_token_id", None)
    return list(dict.fromkeys([*template_end_ids(tokenizer), *([] if eos is None else [int(eos)])]))


def template_end_ids(tokenizer: Any) -> list[int]:
    """Find the special token that ends a turn in the chat template; empty: there is none."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _MARK}]
    _, shown, behind = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(_MARK)
    first = tokenizer.encode(behind, add_special_tokens=False)[:1] if shown else []
    return [int(token) for token in first if not tokenizer.decode([token], skip_special_tokens=True)]


def _plain_prompt(messages: list[dict[str, Any]]) -> str:
    labels = {"system": "", "user": "Question: ", "assistant": "Answer: ", "tool": "Result: "}
    return "\n\n".join(labels[m["role"]] + m["content"] for m in messages) + "\n\nAnswer:"

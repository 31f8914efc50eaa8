"""Question to prompt tokens; observations and step traces to tokens that are appended. algorithm.md section 2.

Everything is encoded once, alone, and appended: what the policy generated is never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rapo_rllib.settings import ProtocolSettings

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


def default_system_prompt(settings: ProtocolSettings, tool_tags: Sequence[str]) -> str:
    """The system prompt that explains the protocol for one tool set."""
    lines = [_TOOL_LINES.get(tag, f"<{tag}>input</{tag}> calls the tool {tag}.") for tag in tool_tags]
    return _SYSTEM_PROMPT.format(
        think=settings.think_tag,
        tools="\n".join(lines) or "(no tools)",
        result=settings.result_tag,
        retrieve=settings.retrieve_tag,
        answer=settings.answer_tag,
    )


def without_spill(text: str, spill: str) -> str:
    r"""Return what is left to append of ``text`` when the policy's last token has already written ``spill``.

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
    """Builds prompts and appended pieces for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer; without a chat template a plain ``Question: ... / Answer:`` form is used.
        settings: tags, system prompt and worked examples.
        tool_tags: tags of the tools that the environment offers, for the system prompt.
    """

    def __init__(self, tokenizer: Any, settings: ProtocolSettings, tool_tags: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.system_prompt = settings.system_prompt
        if self.system_prompt is None:
            self.system_prompt = default_system_prompt(settings, tool_tags)
        self.end_ids = _end_ids(tokenizer)  # that end the policy's turn, the usual one first; none where there is none

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens the tokenizer knows."""
        return len(self.tokenizer)

    def messages(self, question: str) -> list[dict[str, Any]]:
        """The turns before the policy's: system prompt, worked examples, the question."""
        template = self.settings.question_template
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for example_question, example_response in self.settings.examples:
            shown = template.replace("{question}", example_question)
            messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": example_response}]
        messages.append({"role": "user", "content": template.replace("{question}", question)})
        return messages

    def prompt_text(self, question: str) -> str:
        """The whole prompt for a server that tokenizes by itself, and puts the token of a text's beginning before it."""
        messages = self.messages(question)
        if not getattr(self.tokenizer, "chat_template", None):
            return _plain_prompt(messages)
        text: str = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        begins = self.tokenizer.encode("x")[:1] == [getattr(self.tokenizer, "bos_token_id", None)]
        return text.removeprefix(self.tokenizer.bos_token) if begins else text

    def prompt_ids(self, question: str) -> list[int]:
        """Tokens of the whole prompt, up to where the policy starts to write. ``[P]``."""
        messages = self.messages(question)
        if not getattr(self.tokenizer, "chat_template", None):
            return list(self.tokenizer.encode(_plain_prompt(messages)))
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Tokens of one piece that is appended, encoded alone.

        What a tool or a step trace says is text: a ``<|im_end|>`` in it becomes the tokens of its characters, not the special
        token, which would end the turn.
        """
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)) if text else []

    def retrieved_text(self, trace: str) -> str:
        """A step trace as it is shown to the policy: one sentence, then the trace in its own tag."""
        tag = self.settings.retrieve_tag
        return f"{self.settings.retrieval_sentence}\n<{tag}>\n{trace.strip()}\n</{tag}>\n"


def _end_ids(tokenizer: Any) -> list[int]:
    """Tokens that end a turn: the one that the chat template writes, where it writes one, and the tokenizer's EOS.

    They differ for base models: Qwen2.5's EOS is ``<|endoftext|>``, and its template ends a turn with ``<|im_end|>``.
    """
    eos = getattr(tokenizer, "eos_token_id", None)
    found = [] if eos is None else [int(eos)]
    if not getattr(tokenizer, "chat_template", None):
        return found
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _MARK}]
    _, shown, behind = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(_MARK)
    first = tokenizer.encode(behind, add_special_tokens=False)[:1] if shown else []
    special = [int(token) for token in first if not tokenizer.decode([token], skip_special_tokens=True)]
    return list(dict.fromkeys([*special, *found]))


def _plain_prompt(messages: list[dict[str, Any]]) -> str:
    labels = {"system": "", "user": "Question: ", "assistant": "Answer: "}
    return "\n\n".join(labels[m["role"]] + m["content"] for m in messages) + "\n\nAnswer:"

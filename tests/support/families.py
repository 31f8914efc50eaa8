"""What is checked of the chat templates that TRL ships, those of released models: rows of a table in docs/tools.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calculator_turns import CALCULATOR
from chat_templates import WEATHER, trl_template

from rapo_rllib.protocol.calls import MakeReader
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.protocol.turns import Call, Observation, Turn
from rapo_rllib.settings import ProtocolSettings

QWEN = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
GEMMA4 = (
    *(
        "<bos>",
        "<|turn>",
        "<turn|>",
        "<|tool>",
        "<tool|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
    ),
    *("<|channel>", "<channel|>", "<|think|>", '<|"|>'),
)
LFM2 = (
    *("<|startoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>"),
    *("<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"),
)
DEEPSEEK = (
    *(
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<think>", "</think>"),
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"
BEGIN, END = "<!-- families: python tests/support/families.py writes them -->", "<!-- end of families -->"
ENDS = ("<tool_call|>", "</function>", "}", "]", "</tool_call>")  # of a whole call: the first that it has
CALLS = (("weather", {"city": 'Köln "Dom"', "days": 2}), ("calculator", {"expression": "3 + 5"}))


@dataclass(frozen=True)
class Released:
    """A chat template of TRL's package."""

    family: str
    template: str
    special: tuple[str, ...]
    eos: str


RELEASED = (
    Released("Qwen 2.5", "qwen2_5", QWEN, "<|im_end|>"),
    Released("Qwen 3", "qwen3", QWEN, "<|im_end|>"),
    Released("Qwen 3 Instruct 2507", "qwen3_instruct_2507", QWEN, "<|im_end|>"),
    Released("Qwen 3.5, thinking", "qwen3_5_think", QWEN, "<|im_end|>"),
    Released("Qwen 3.5, not thinking", "qwen3_5_nothink", QWEN, "<|im_end|>"),
    Released("Qwen 3.6", "qwen3_6", QWEN, "<|im_end|>"),
    Released("Qwen 3.8", "qwen3_8", QWEN, "<|im_end|>"),
    Released("Nemotron 3 Nano", "nemotron_3_nano", QWEN, "<|im_end|>"),
    Released("Nemotron 3 Super", "nemotron_3_super", QWEN, "<|im_end|>"),
    Released("Nemotron 3 Ultra", "nemotron_3_ultra", QWEN, "<|im_end|>"),
    Released("Nemotron 3.5 Lightning", "nemotron_3_5_lightning", QWEN, "<|im_end|>"),
    Released("Llama 3.1", "llama3_1", LLAMA, "<|eot_id|>"),
    Released("Llama 3.2", "llama3_2", LLAMA, "<|eot_id|>"),
    Released("LFM2", "lfm2", LFM2, "<|im_end|>"),
    Released("LFM2, revised", "lfm2_v2", LFM2, "<|im_end|>"),
    Released("LFM2.5", "lfm2_2_5", LFM2, "<|im_end|>"),
    Released("Gemma 3", "gemma3", ("<bos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>"),
    Released("Gemma 4", "gemma4", GEMMA4, "<turn|>"),
    Released("DeepSeek V3", "deepseekv3", DEEPSEEK, "<｜end▁of▁sentence｜>"),
    Released("DeepSeek R1 distilled", "deepseek_r1_distill", DEEPSEEK, "<｜end▁of▁sentence｜>"),
    Released("Phi 3.5", "phi3_5", ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), "<|end|>"),
)


def tokenizer_for(released: Released, smollm2: Path) -> Any:
    """SmolLM2's tokenizer with the family's special tokens and its template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokenizer.add_tokens(list(released.special), special_tokens=True)
    tokenizer.eos_token = released.eos
    tokenizer.bos_token = next(
        (token for token in released.special if "begin" in token or "bos" in token or token == "<|startoftext|>"), None
    )
    tokenizer.chat_template = trl_template(released.template)
    return tokenizer


COLUMNS = (
    "family",
    "TRL's template",
    "`auto` finds",
    "several calls",
    "append",
    "thoughts kept",
)


def row_of(released: Released, tokenizer: Any, make_reader: MakeReader) -> tuple[str, ...]:
    """The cells of :data:`COLUMNS`. Asserts what holds of every family that is not refused."""
    named = (released.family, f"`{released.template}`")
    try:
        chat = NativeProtocol(
            tokenizer, ProtocolSettings(format="native", system_prompt=""), [CALCULATOR, WEATHER], make_reader
        )
    except ValueError as error:
        return (*named, f"refused: {_short(str(error))}", *["–"] * 3)
    one = _Turn(tokenizer, chat, CALLS[:1])
    assert [(call.name, call.arguments) for call in chat.read(one.ids, "", "", "eos").calls] == list(CALLS[:1]), one.said
    _assert_truncated_calls_have_problems(tokenizer, chat, one)
    _assert_special_tokens_stay_text(released, tokenizer, chat)
    return (
        *named,
        f"`{chat.parser}`",
        _several(tokenizer, chat),
        _appended(tokenizer, chat, one),
        _thoughts(chat),
    )


def _short(message: str) -> str:
    if "no parser reads back" in message:
        return "no parser reads its calls"
    found = re.search(r"the model's (?:chat template|tokenizer) ([^;(:]+)", message)
    assert found is not None, message
    return f"its template {found[1].strip().removesuffix(',')}"


class _Turn:
    """A turn of the policy with calls, as the template writes them."""

    def __init__(self, tokenizer: Any, chat: NativeProtocol, calls: Sequence[tuple[str, dict[str, Any]]]) -> None:
        question = {"role": "user", "content": "question"}
        named = [Call(name, arguments, f"{index + 1:09d}") for index, (name, arguments) in enumerate(calls)]
        self.message = chat._template.calling(named[0])
        self.message["tool_calls"] = [chat._template.calling(call)["tool_calls"][0] for call in named]
        self.messages = [question, self.message]
        self.turn = Turn.of("", calls=tuple(named))
        whole = tokenizer.apply_chat_template(self.messages, tools=[CALCULATOR, WEATHER], tokenize=False)
        opened = tokenizer.apply_chat_template(
            [question], tools=[CALCULATOR, WEATHER], tokenize=False, add_generation_prompt=True
        )
        common = next((i for i, (a, b) in enumerate(zip(whole, opened, strict=False)) if a != b), min(len(whole), len(opened)))
        end = chat._template.call_end
        self.said = whole[common:].partition(end)[0]
        self.ids = tokenizer.encode(self.said + end, add_special_tokens=False)


def _several(tokenizer: Any, chat: NativeProtocol) -> str:
    try:
        both = _Turn(tokenizer, chat, CALLS)
    except Exception:  # its template raises
        return "one a turn"
    if CALLS[1][0] not in both.said:
        return "one a turn"
    return "yes" if [(c.name, c.arguments) for c in chat.read(both.ids, "", "", "eos").calls] == list(CALLS) else "not read"


def _assert_truncated_calls_have_problems(tokenizer: Any, chat: NativeProtocol, one: _Turn) -> None:
    """Assert that a call that is cut off, anywhere in its arguments, is a call with a problem."""
    begin = one.said.index("weather") + len("weather")
    whole = next(one.said.rindex(end) for end in ENDS if end in one.said)
    for end in (*range(begin, whole, 9), whole):
        turn = chat.read([*tokenizer.encode(one.said[:end], add_special_tokens=False), chat.end_ids[0]], "", "", "eos")
        assert turn.calls and turn.answer is None and all(call.problem for call in turn.calls), one.said[:end]


def _appended(tokenizer: Any, chat: NativeProtocol, one: _Turn) -> str:
    ids = [*chat.prompt_ids("question"), *one.ids]
    ids += [*chat.observation(Observation.of(["8"]), one.turn).token_ids, *chat.opening.token_ids]
    (call,) = one.turn.calls
    told = {"role": "tool", "content": "8", "name": call.name, "tool_call_id": call.id}
    whole = tokenizer.apply_chat_template(
        [*one.messages, told], tools=[CALCULATOR, WEATHER], add_generation_prompt=True, tokenize=False
    )
    here = tokenizer.decode(ids)
    if here == whole:
        return "exact"
    bare = [re.sub(r"(?:<think>)?\s*</think>\s*|<think>\s*", "", text) for text in (here, whole)]
    return "but for empty thoughts" if bare[0] == bare[1] else "differs"


def _assert_special_tokens_stay_text(released: Released, tokenizer: Any, chat: NativeProtocol) -> None:
    """Assert that special tokens in a result, a retrieved step and a question stay text."""
    hostile, known = "8" + "".join(released.special) + "9", set(tokenizer.get_added_vocab().values())

    def special(ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in known]

    for make in (
        lambda text: chat.observation(Observation.of([text]), _calling()).token_ids,
        lambda text: chat.retrieved(text).token_ids,
        lambda text: chat.prompt_ids(text),
    ):
        assert special(make(hostile)) == special(make("x")), hostile


def _calling() -> Turn:
    return Turn.of("", calls=(Call("weather", {}, "000000001"),))


def _thoughts(chat: NativeProtocol) -> str:
    if chat._thoughts.closing not in chat.tokenizer.chat_template:
        return "–"
    kept = []
    for behind, by_user in (("a result", False), ("a question", True)):
        try:
            kept += [behind] if chat._template.keeps_thoughts(chat._thoughts, by_user) else []
        except ValueError:
            continue
    return f"behind {' and '.join(kept)}" if kept else "no"


def written_table(smollm2: Path, make_reader: MakeReader) -> str:
    """The table as it stands in docs/tools.md."""
    rows = [row_of(released, tokenizer_for(released, smollm2), make_reader) for released in RELEASED]
    return f"{BEGIN}\n{table(rows)}\n{END}"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows below their names."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the table anew."""
    from rapo_rllib.models.loading import resolve_model
    from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader

    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    table = written_table(Path(resolve_model("smollm2-135m-instruct")), vllm_call_reader)
    PAGE.write_text(before + table + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()

"""Chat templates with tools, one per model family, on SmolLM2's tokenizer with the family's special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripted import Script, ScriptedEngine

from rapo_rllib.rollout.engine import Completion, GenerationRequest

FOLDER = Path(__file__).parent / "templates"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True)
class Family:
    """How one family writes."""

    template: str
    parser: str  # that `auto` finds
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()  # tokens that are not special
    bos: str | None = None
    eos: str | None = None

    def calls(self, *calls: tuple[str, dict[str, Any]], ids: Sequence[str] = ()) -> str:
        """A turn of the policy with calls, as the family writes them; ``ids``: where it writes those, too."""
        if self.parser == "hermes":
            written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
        if self.parser == "llama3_json":
            return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)
        named = zip(calls, ids or [""] * len(calls), strict=True)
        with_id = self.parser == "mistral" and bool(ids)
        listed = json.dumps([{"name": n, "arguments": a, **({"id": i} if with_id else {})} for (n, a), i in named])
        return f"[TOOL_CALLS] {listed}" if self.parser == "mistral" else f"<tool_call>{listed}</tool_call>"


LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
MISTRAL = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    "[/TOOL_RESULTS]",
)
FAMILIES = {
    "qwen25": Family("qwen25", "hermes", added=("<tool_call>", "</tool_call>")),
    "qwen3": Family("qwen3", "hermes", added=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>")),
    "llama31": Family("llama31", "llama3_json", LLAMA, bos="<|begin_of_text|>", eos="<|eot_id|>"),
    "mistral": Family("mistral", "mistral", MISTRAL, bos="<s>", eos="</s>"),
    "smollm2": Family("smollm2_tools", "xlam"),
}


def tokenizer_of(family: str, smollm2: Path) -> Any:
    """SmolLM2's tokenizer as one of a family."""
    from transformers import AutoTokenizer

    chosen = FAMILIES[family]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokenizer.add_tokens(list(chosen.special), special_tokens=True)
    tokenizer.add_tokens(list(chosen.added))
    if chosen.bos:
        tokenizer.bos_token, tokenizer.eos_token = chosen.bos, chosen.eos
    tokenizer.chat_template = template(chosen.template)
    return tokenizer


def template(name: str) -> str:
    """The text of a template."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")


def trl_template(name: str) -> str:
    """The text of a chat template that TRL ships: one of a model as it was released."""
    found = find_spec("trl")
    assert found is not None and found.origin is not None
    return (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


class ScriptedTurns(ScriptedEngine):
    """Writes turns that a script says, in tokens of a real tokenizer; each ends with the token that ends a turn."""

    def __init__(self, tokenizer: Any, script: Script) -> None:
        super().__init__(script)
        self.tokenizer = tokenizer

    def _complete(self, request: GenerationRequest) -> Completion:
        assert not request.stop and request.final_stop is None
        said = self.script(self.tokenizer.decode(request.token_ids))
        ids, finish = [*self.tokenizer.encode(said, add_special_tokens=False), request.end_ids[0]], "eos"
        if len(ids) > request.max_tokens:
            ids, finish = ids[: request.max_tokens], "length"
        n, text = len(ids), self.tokenizer.decode(ids, skip_special_tokens=True)
        return Completion(request.request_id, ids, [-0.5] * n, [1.0] * n, text, "", finish, self.policy_version)

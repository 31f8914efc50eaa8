"""Keys of the Step-Trace Buffer: where it lives, and how it is read. algorithm.md section 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.validation import MOST_FOUND


def _check_collection(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.isidentifier():
        raise ValueError(f"{name} = {value!r}: must be letters, digits and underscores")


@dataclass(frozen=True)
class TraceFilter(Knobs):
    """Conditions on the step traces that may be retrieved; default: none."""

    where: ClassVar[str] = "step_trace_buffer.filter."

    question: Literal["any", "other", "same"] = knob(
        "any", "traces of `any` question, of every `other` than the one asked, or of the `same`"
    )
    hide_answers: bool = knob(False, "no trace that shows an accepted answer of the question, as number or words")


@dataclass(frozen=True)
class BufferSettings(Knobs):
    """Place of the Step-Trace Buffer, and retrieval from it. algorithm.md section 4."""

    where: ClassVar[str] = "step_trace_buffer."

    uri: str = knob("./step_traces.db", "a Milvus Lite path ending in .db, or http(s)://host:port[/database]")
    collection: str = knob("step_traces", "name of the Milvus collection", check=_check_collection)
    embedder: str = knob(
        "all-minilm-l6-v2", "sentence-transformers id, folder or packaged name; or an endpoint http(s)://host:port/v1#model"
    )
    traces: str | None = knob(
        "expert", "source of its first build: `expert` (the environment's) or a .jsonl[.gz] file; None: it must exist"
    )
    max_traces: int | None = knob(None, "stop building after so many step traces; None: all", at_least=1)
    top_k: int = knob(1, "nearest traces to choose from", at_least=1, at_most=MOST_FOUND)
    selection: Literal["nearest", "best_reward"] = knob(
        "nearest", "show the `nearest` of these, or that with the `best_reward`"
    )
    fallback_text: str = knob("", "text shown if no trace suits; empty: nothing is shown")
    pooling: Literal["mean", "last_token"] = knob(
        "mean", "a text's vector: the `mean` over its tokens, or that of the `last_token` (released code)"
    )
    key_recipe: Literal["goal_and_recent", "last_characters"] = knob(
        "goal_and_recent",
        "the embedded text: `goal_and_recent`: question and history, shortened to both ends of the question and the recent "
        "end of the history; `last_characters` (released code)",
    )
    key_history_tokens: int | None = knob(
        None,
        "with `goal_and_recent`: embed only so many tokens of the history's end, for example 32 if the latest observation "
        "tells the situation; None: question and history",
        at_least=8,
        at_most=256,
    )
    index: Literal["auto", "exact", "hnsw"] = knob(
        "auto", "`auto`: exact while small; `exact`; `hnsw`, on a server (released code)"
    )
    level: Literal["step", "trajectory"] = knob("step", "whether a trace is a step or a whole trajectory", hidden=True)
    filter: TraceFilter = knob(TraceFilter, "conditions on traces that may be shown")
    growth: Literal["none", "successful", "advantage"] = knob("none", "which of the policy's steps enter", hidden=True)
    max_grown: int = knob(10_000, "most step traces of the policy's own; above it the oldest leave", at_least=1)
    timeout_s: float = knob(10.0, "deadline of a request to Milvus", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_history_tokens is not None and self.key_recipe != "goal_and_recent":
            raise ValueError(
                f"step_trace_buffer.key_history_tokens = {self.key_history_tokens} with key_recipe = {self.key_recipe!r}: "
                "that has its own length; set key_recipe to 'goal_and_recent', or leave key_history_tokens out"
            )

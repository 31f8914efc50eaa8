"""What the rollout loop needs of an inference engine: submit a request, poll for finished ones.

``vllm_engine.VLLMEngine`` is the real one; tests of the loop may use a scripted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class GenerationRequest:
    """Continue ``token_ids`` by one step: up to a stop string (kept), EOS (kept) or ``max_tokens``.

    Behind ``final_stop`` one more token is sampled, if ``max_tokens`` leaves one: EOS, unless the policy would ramble on.
    """

    request_id: str
    token_ids: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...] = ()
    final_stop: str | None = None  # one of them
    end_ids: tuple[int, ...] = ()  # tokens that end a turn, beside the tokenizer's EOS
    temperature: float = 1.0  # 0: greedy, without entropies
    seed: int | None = None  # of this request's own sampling: what else runs in the batch does not change what is drawn
    entropy_top_k: int | None = None  # likeliest tokens that an entropy is made of; None: the full vocabulary


@dataclass(frozen=True)
class Completion:
    """One generated step.

    ``text`` ends with the stop string; ``spill`` holds the characters that the tokens carry beyond it (a token may contain the
    end of a tag and the start of something else, and behind ``final_stop`` stands a whole one). EOS is no text.
    """

    request_id: str
    token_ids: Sequence[int]  # [N], EOS included
    logprobs: Sequence[float]  # [N] of the distribution sampled from (greedy: at temperature 1), nats
    entropies: Sequence[float]  # [N] full vocabulary (or the top k asked for), nats; zeros when greedy
    text: str
    spill: str
    finish: str  # stop (a stop string), eos (or another token of end_ids) or length
    policy_version: int
    cached_tokens: int = 0  # of the request's tokens, found in the prefix cache


class Engine(Protocol):
    """An inference engine with continuous batching."""

    policy_version: int

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; it joins the running batch. ``RequestError`` if this one cannot be served."""

    def poll(self) -> list[Completion]:
        """Advance every running request by one engine step; return those that finished. ``EngineError`` if it broke."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests; they never complete."""

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or running."""

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace the policy's weights and forget every cached prefix. ``WeightSyncError`` if they did not all arrive."""

    def load_weights_file(self, path: str, version: int) -> None:
        """The same for weights in a safetensors file."""

    def confirm_weights(self, version: int) -> None:
        """The weights are already there, and are of this version; forget every cached prefix."""

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprob of every token but the first of each sequence, nats, at temperature 1."""

    def close(self) -> None:
        """Free the engine's memory and processes."""

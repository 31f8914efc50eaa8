"""An inference engine as the rollout loop needs it: submit a request, poll for finished ones.

``rollout/vllm/engine.py`` has that of the policy, ``agents/endpoint.py`` asks a service; tests of the loop use a scripted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rapo_rllib.errors import RequestError
from rapo_rllib.types import Question, Trajectory


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
    # whose next step it is, for engines that are asked with texts
    question: Question | None = field(default=None, repr=False, compare=False)
    trajectory: Trajectory | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Completion:
    """One generated step.

    ``text`` ends with the stop string; ``spill`` holds the characters that the tokens carry beyond it (a token may contain the
    end of a tag and the start of something else, and behind ``final_stop`` stands a whole one). EOS is no text.
    """

    request_id: str
    token_ids: Sequence[int]  # [N], EOS included
    logprobs: Sequence[float] | None  # [N] of the distribution sampled from (greedy: at temperature 1), nats; None: not known
    entropies: Sequence[float] | None  # [N] full vocabulary (or the top k asked for), nats; zeros when greedy; None: not known
    text: str
    spill: str
    finish: str  # stop (a stop string), eos (or another token of end_ids) or length
    policy_version: int  # of the weights when it was whole
    cached_tokens: int = 0  # of the request's tokens, found in the prefix cache
    versions: Sequence[int] | None = None  # [N] of the weights that sampled each token; None: ``policy_version`` did all
    num_sampled: int | None = None  # tokens as an author with another tokenizer counts them; None: N


@dataclass(frozen=True)
class Failure:
    """A request that was accepted and then not served: it costs its trajectory alone."""

    request_id: str
    error: RequestError


class Engine(Protocol):
    """An inference engine with continuous batching."""

    @property
    def policy_version(self) -> int:
        """The version of its weights."""

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request, which joins the running batch. Raises ``RequestError`` if it cannot be served."""

    def poll(self) -> Sequence[Completion | Failure]:
        """Advance every running request by one engine step; return those that finished. ``EngineError`` if it broke."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests; they never complete."""

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or running."""

    def close(self) -> None:
        """Free the engine's memory and processes."""

"""An inference engine as the rollout loop needs it: submit a request, poll for finished ones.

``rollout/vllm/engine.py`` runs the policy, ``agents/endpoint.py`` asks a service, and tests of the loop use a scripted engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rapo_rllib.errors import RequestError
from rapo_rllib.types import Question, Trajectory


@dataclass(frozen=True)
class GenerationRequest:
    """A request to continue ``token_ids`` by one step: up to a stop string (kept), EOS (kept) or ``max_tokens``.

    After ``final_stop`` one more token is sampled if ``max_tokens`` has room: EOS, unless the policy would ramble on.
    """

    request_id: str
    token_ids: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...] = ()
    final_stop: str | None = None  # one of ``stop``
    end_ids: tuple[int, ...] = ()  # tokens that end a turn, beside the tokenizer's EOS
    temperature: float = 1.0  # 0: greedy, without entropies
    seed: int | None = None  # of this request's own sampling, so that other requests in the batch do not change its tokens
    entropy_top_k: int | None = None  # number of likeliest tokens that an entropy counts; None: the full vocabulary
    # the trajectory to continue and its question, for engines that take texts instead of tokens
    question: Question | None = field(default=None, repr=False, compare=False)
    trajectory: Trajectory | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Completion:
    """One generated step.

    ``text`` ends with the stop string; ``spill`` holds the characters of the tokens beyond it: a token may contain the end of a
    tag and the start of something else, and after ``final_stop`` a whole token follows. EOS adds no characters.
    """

    request_id: str
    token_ids: Sequence[int]  # [N], EOS included
    logprobs: Sequence[float] | None  # [N] of the distribution sampled from (greedy: at temperature 1), nats; None: not known
    entropies: Sequence[float] | None  # [N] full vocabulary (or the top k asked for), nats; zeros when greedy; None: not known
    text: str
    spill: str
    finish: str  # stop (a stop string), eos (or another token of end_ids) or length
    policy_version: int  # of the weights when the step was complete
    cached_tokens: int = 0  # tokens of the request that were found in the prefix cache
    versions: Sequence[int] | None = None  # [N] of the weights that sampled each token; None: all by ``policy_version``
    num_sampled: int | None = None  # count of tokens by the author's tokenizer, if it is another one; None: N


@dataclass(frozen=True)
class Failure:
    """A request that was accepted and then not served; only its trajectory fails."""

    request_id: str
    error: RequestError


class Engine(Protocol):
    """An inference engine with continuous batching."""

    @property
    def policy_version(self) -> int:
        """The version of the engine's weights."""

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request, which joins the running batch. Raises ``RequestError`` if it cannot be served."""

    def poll(self) -> Sequence[Completion | Failure]:
        """Advance every running request by one engine step; return those that finished. Raises ``EngineError`` if it broke."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests; they never complete."""

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or running."""

    def close(self) -> None:
        """Free the engine's memory and processes."""

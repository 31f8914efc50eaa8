"""One more token after the closing tag of an answer, so that a trajectory ends with EOS (algorithm.md sections 1 and 2).

vLLM ends a request when its detokenizer reports a stop string. The detokenizer of a request with a ``final_stop`` reports this
string one token late, so that the same request, with its cache, also samples whether the policy ends its turn. A separate
request for that token would compute up to a block of tokens again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import LLMEngine


def sample_one_more(engine: LLMEngine, internal_id: str, final_stop: str, max_tokens: int) -> None:
    """Make a request that was just added sample one token after ``final_stop``, unless ``max_tokens`` is reached there."""
    state = engine.output_processor.request_states[internal_id]
    state.detokenizer = OneMore(state.detokenizer, final_stop, max_tokens)  # type: ignore[assignment]


class OneMore:
    """A detokenizer for vLLM that reports ``final_stop`` only with the token after it.

    The text still ends with the stop string: the token after it is among the ids only.

    Args:
        inner: vLLM's own detokenizer.
        final_stop: one of the stop strings of ``inner``.
        max_tokens: of the response; if the stop string uses up the last of them, no further token is sampled.
    """

    def __init__(self, inner: Any, final_stop: str, max_tokens: int) -> None:
        self._inner, self._final_stop, self._max_tokens = inner, final_stop, max_tokens
        self._reached = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update(self, new_token_ids: Sequence[int], stop_terminated: bool) -> str | None:
        """Take new tokens; returns the stop string that ends the request, or None."""
        if self._reached:
            return self._ended_by(new_token_ids)
        before = self._inner.num_output_tokens()
        stop: str | None = self._inner.update(list(new_token_ids), stop_terminated)
        if stop != self._final_stop or self._inner.num_output_tokens() >= self._max_tokens:
            return stop
        self._reached = True
        return self._ended_by(new_token_ids[self._inner.num_output_tokens() - before :])

    def _ended_by(self, token_ids: Sequence[int]) -> str | None:
        """Keep the first of the tokens after the stop string (a step may bring several); return None until there is one."""
        if not token_ids:
            return None
        self._inner.token_ids.append(token_ids[0])
        return self._final_stop

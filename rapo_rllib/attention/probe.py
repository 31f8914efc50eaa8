"""Find by trying which attention over packed rows a model computes rightly.

A list of model names would be wrong by the next release. So a small packed row of random tokens, with a fork in it, passes
through the model, forward and backward, once per kind of attention. The result must be that of the separate sequences: hidden
states, and a gradient that has come through the attention of all layers. In low precision this would not show that a token sees
a little of a sibling. So a second test changes the tokens of one response: the other responses must stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rapo_rllib.attention.forward import RowAttention, hidden_states, switched_to, use_attention
from rapo_rllib.batching.packing import PackedRow, pack_rows
from rapo_rllib.batching.samples import Sample, SampleGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

CANDIDATES = {  # by device: FlexAttention has no backward pass on the CPU
    "cpu": (RowAttention.BLOCKS, RowAttention.MASK),
    "cuda": (RowAttention.FLEX, RowAttention.MASK),
}
# numbers of tokens: of a prompt, shared by two responses, of one response alone. FlexAttention's blocks have 128 tokens: its
# row has one block that the next one sees as a whole, which is computed in another way, and one that begins inside a response
SIZES = {"cpu": (8, 4, 6), "cuda": (140, 4, 50)}
SECOND = 1  # index of the response that is changed
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 0.05  # relative
GRADIENTS = 4  # factor of the tolerance for gradients, since the errors of two passes add up in them

Values = dict[str, torch.Tensor]  # the results of a pass, by name
Attempt = Callable[[Callable[[], Any], Callable[[], Any]], Any]


@torch.no_grad()
def row_attention(
    language_model: PreTrainedModel,
    dtype: torch.dtype | None = None,
    call: Callable[..., Any] | None = None,
    attempt: Attempt = lambda work, _: work(),
) -> RowAttention:
    """Find the fastest way to send packed rows through this model on its device, and switch the model to it.

    Args:
        language_model: on the device on which it will be used.
        dtype: of autocast; None for none.
        call: calls a function with the language model and further arguments; None: a plain call.
        attempt: calls the first of two functions, and returns its result; if it raises on one of several learners, ``attempt``
            raises on all. The second function passes through the model as often, in place of passes that the first missed.

    Returns:
        The way found; ``UNSHARED``, with a warning, for a model that cannot attend along a tree.
    """
    device = "cuda" if next(language_model.parameters()).device.type == "cuda" else "cpu"
    probe, reasons, name = Probe(language_model, device, dtype, call, attempt), list[str](), type(language_model).__name__
    expected = attempt(probe.values_of_separate_sequences, probe.values_of_separate_sequences)
    for attention in CANDIDATES[device]:
        reason = probe.reason_against(attention, expected)
        if reason is None:
            if reasons:
                told = (name, str(attention), "; ".join(reasons))
                logger.warning("%s takes attention %r over packed rows, slower than it could be (%s)", *told)
            return attention
        reasons.append(f"{attention}: {reason}")
    logger.warning(
        "%s cannot attend along a prefix tree (%s), so trajectories are packed without sharing their prompts",
        *(name, "; ".join(reasons)),
    )
    return RowAttention.UNSHARED


class Probe:
    """A small row of random tokens, with a fork in it, and its passes through a model; see :func:`row_attention`."""

    def __init__(
        self,
        language_model: PreTrainedModel,
        device: str,
        dtype: torch.dtype | None = None,
        call: Callable[..., Any] | None = None,
        attempt: Attempt = lambda work, _: work(),
    ) -> None:
        self._model, self._dtype, self._attempt = language_model, dtype, attempt
        self._call = call or (lambda function, *arguments: function(language_model, *arguments))
        vocabulary, place = language_model.config.get_text_config().vocab_size, next(language_model.parameters()).device
        sizes = SIZES[device]
        self.rows = {share: _row(vocabulary, share, *sizes).to(place) for share in (False, True)}
        self._changed = _row(vocabulary, True, *sizes, change=True).to(place)

    def values_of_separate_sequences(self) -> Values:
        """Compute the expected values by eager attention: other kinds may leave out what they lack, such as a soft cap."""
        with switched_to(self._model, "eager"):
            return self._values(RowAttention.UNSHARED)

    def reason_against(self, attention: RowAttention, expected: Values) -> str | None:
        """Find the reason why the model cannot use ``attention``; None: it can, and stays switched to it."""
        own = self._model.config._attn_implementation
        try:
            self._attempt(lambda: self._check(attention, expected), self._stand_in)
        except Exception as error:  # whatever a model of any origin raises at arguments that it does not know
            self._model.set_attn_implementation(own)
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None

    def _check(self, attention: RowAttention, expected: Values) -> None:
        use_attention(self._model, attention)
        values, seen = self._values(attention), self._seen_of_siblings(attention)
        for name, found in values.items():
            wrong = float((found - expected[name]).norm() / expected[name].norm())
            low = (self._dtype or found.dtype).itemsize < 4
            tolerance = LOW_PRECISION_TOLERANCE if low else TOLERANCE
            if not wrong < tolerance * (GRADIENTS if name == "gradients" else 1):
                raise ArithmeticError(f"{name} differ by {wrong:.0%} from those of separate sequences")
        if not seen < TOLERANCE:
            raise ArithmeticError(f"a response changes by {seen:.1%} with the tokens of another")

    def _stand_in(self) -> None:
        """Pass through the model as ``_check`` does, whatever comes out."""
        with switched_to(self._model, "eager"):
            self._values(RowAttention.UNSHARED)
            self._seen_of_siblings(RowAttention.UNSHARED)

    @torch.no_grad()
    def _seen_of_siblings(self, attention: RowAttention) -> float:
        """Measure how far the states of all other responses change if tokens of the second response change."""
        rows = self.rows[True], self._changed
        before, after = (self._call(self._states, attention, row)[row.trajectory_ids != SECOND] for row in rows)
        return float((after - before).norm() / before.norm())

    def _values(self, attention: RowAttention) -> Values:
        """Compute hidden states by a pass, and the gradient of a vector that is added to all embeddings."""
        added: list[torch.Tensor] = []

        def add(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            if not added:  # some models look up the same tokens twice
                added.append(output.new_zeros(output.shape[-1], requires_grad=True))
            return output + added[0]

        with torch.enable_grad():
            hook = self._model.get_input_embeddings().register_forward_hook(add)
            try:
                states = self._call(self._states, attention)
            finally:
                hook.remove()
            factors = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(states)
            (gradient,) = torch.autograd.grad((states * factors).sum(), added)
        return {"hidden states": states.detach(), "gradients": gradient}

    def _states(self, language_model: PreTrainedModel, attention: RowAttention, row: PackedRow | None = None) -> torch.Tensor:
        """Compute the hidden states ``[N, D]`` that predict loss tokens, in an order that does not depend on ``attention``."""
        row = row or self.rows[attention is not RowAttention.UNSHARED]
        with torch.autocast(row.token_ids.device.type, self._dtype, enabled=self._dtype is not None):
            return hidden_states(language_model, row, attention)[row.scored_positions[row.loss_index]]


def _row(vocabulary: int, share: bool, prompt: int, common: int, own: int, change: bool = False) -> PackedRow:
    """Build a row of a prompt with three responses, two of which begin alike, and of a short prompt with one response.

    With ``change`` the second response, which lies between the others, ends with other tokens.
    """
    generator = np.random.default_rng(0)

    def tokens(count: int) -> np.ndarray:
        return generator.integers(0, vocabulary, count).astype(np.int32)

    shared = tokens(common)
    responses = [np.concatenate([shared, tokens(own)]), np.concatenate([shared, tokens(own)]), tokens(own)]
    responses[SECOND][common:] = (responses[SECOND][common:] + change) % vocabulary
    groups = [SampleGroup(tokens(prompt), tuple(map(_sample, responses))), SampleGroup(tokens(8), (_sample(tokens(own)),))]
    (row,) = pack_rows(groups, max_tokens=1000, share=share)
    return row


def _sample(token_ids: np.ndarray) -> Sample:
    zeros = np.zeros(len(token_ids), dtype=np.float32)
    return Sample(token_ids, np.ones(len(token_ids), dtype=bool), zeros, zeros, 0.0, 1.0)

"""Exact full-vocabulary entropy of every sampled token, recorded inside vLLM. ALGORITHM section 5, eq. 2.

vLLM hands each logits processor that may change the argmax the raw logits of the batch. ``EntropyRecorder`` changes nothing: it
computes ``H`` of the distribution that is about to be sampled from (temperature applied) and keeps it under the request's own
name, which travels in ``SamplingParams.extra_args``. Values are stored by position in the response, since vLLM also runs the
processors on rows whose token it then discards (a prompt that is only partly prefilled) and again after a preemption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from rapo_rllib.objective.entropy import token_entropy

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

EXTRA_ARG = "rapo_entropy_key"

# request name -> position in the response -> nats; one engine per process, so one table per process
_recorded: dict[str, dict[int, float]] = {}


class _Row:
    """One running request: its name, temperature, and the list of output tokens that vLLM keeps up to date."""

    __slots__ = ("key", "output_ids", "temperature")

    def __init__(self, key: str, temperature: float, output_ids: list[int]) -> None:
        self.key = key
        self.temperature = temperature
        self.output_ids = output_ids


class EntropyRecorder(LogitsProcessor):
    """Records entropies; returns the logits untouched."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False, although it is: processors that say True are skipped for greedy batches and come after the temperature."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow which request sits in which row of the batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _prompt_ids, output_ids in batch_update.added:
            row = _make_row(params, output_ids)
            if row is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = row
        for source, target, direction in batch_update.moved:
            moving, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moving is not None:
                self._rows[target] = moving
            if replaced is not None and direction == MoveDirectionality.SWAP:
                self._rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Record ``H`` of the rows that asked for it. logits: ``[B, V]``."""
        if not self._rows:
            return logits
        indices = list(self._rows)
        rows = [self._rows[i] for i in indices]
        temperatures = torch.tensor([row.temperature for row in rows], device=logits.device).unsqueeze(-1)
        selected = logits if len(indices) == logits.shape[0] and indices == sorted(indices) else logits[indices]
        entropies = token_entropy(selected.float() / temperatures).tolist()
        for row, entropy in zip(rows, entropies, strict=True):
            _recorded.setdefault(row.key, {})[len(row.output_ids)] = entropy
        return logits


def _make_row(params: SamplingParams, output_ids: list[int]) -> _Row | None:
    key = (params.extra_args or {}).get(EXTRA_ARG)
    return None if key is None else _Row(key, params.temperature or 1.0, output_ids)


def take_entropies(key: str) -> dict[int, float]:
    """Entropies by response position of one request, nats; they are forgotten here."""
    return _recorded.pop(key, {})

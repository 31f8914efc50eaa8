"""Logprob and exact entropy of every sampled token, recorded inside vLLM in one pass of our own. algorithm.md section 5, eq. 2.

The version of the weights that sampled a token is recorded, too.

``TokenRecorder`` is a logits processor that changes nothing: vLLM tells it which request sits in which row of the batch. Its
wrapper around vLLM's sampling module (``watch``) sees the logits that are sampled from, draws the tokens of seeded rows
(``seeded.py``), and measures all recorded rows. Values are kept under the request's own name, which travels in
``SamplingParams.extra_args``, and by position in the response. A later value replaces an earlier one, since vLLM also samples
for rows whose token it then discards (a prompt that is only partly prefilled) and again after a preemption. No step waits for
the device, and reading values waits for no later step (``late_values.py``). Batches in which all requests are greedy never
reach the sampling module; greedy requests are not recorded at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from rapo_rllib.objective.entropy import entropy_and_logprobs
from rapo_rllib.rollout.vllm.late_values import LateValues, TokenRecord
from rapo_rllib.rollout.vllm.seeded import row_keys, seeded_tokens, token_keys

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

KEY_ARG, TOP_K_ARG, SEED_ARG = "rapo_record_key", "rapo_entropy_top_k", "rapo_seed"
CPU_BLOCK_ROWS = 4  # rows that fit a CPU's cache: fresh memory for a whole batch costs more than the arithmetic

Sampled = tuple[torch.Tensor, torch.Tensor | None]  # [B] tokens, and what vLLM's sampler returns beside them


class _Row:
    """One running request: its name, top k, seed, and the list of output tokens that vLLM keeps up to date."""

    __slots__ = ("key", "output_ids", "seed", "top_k")

    def __init__(self, arguments: Mapping[str, Any], output_ids: list[int]) -> None:
        self.key: str = arguments[KEY_ARG]
        self.top_k: int | None = arguments.get(TOP_K_ARG)
        self.seed: int | None = arguments.get(SEED_ARG)
        self.output_ids = output_ids


class TokenRecorder(LogitsProcessor):
    """Logits processor that records every row of the batch and draws the tokens of seeded ones; logits stay unchanged."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}
        self.version = 0  # of the weights that sample now
        self._values = LateValues()
        self._tokens = torch.empty(0)  # keys of the vocabulary's tokens
        self._draw: Callable[..., torch.Tensor] = seeded_tokens
        self._measure: Callable[..., torch.Tensor] = _measured
        if device.type == "cpu":
            self._draw, self._measure = _cpu_draw(), _measured_in_blocks
        elif not vllm_config.model_config.enforce_eager:  # one kernel for each, which writes no [B, V] tensor
            self._draw = torch.compile(seeded_tokens, dynamic=True)
            self._measure = torch.compile(_measured, dynamic=True)

    def is_argmax_invariant(self) -> bool:
        """Return True, since the logits are not changed."""
        return True

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
        """Return the logits as they are. logits: ``[B, V]``."""
        return logits

    def watch(self, sampling: torch.nn.Module) -> None:
        """Wrap ``sampling``, vLLM's ``TopKTopPSampler``: every call draws the tokens of seeded rows and records all rows."""
        unseeded = sampling.forward

        def forward(logits: torch.Tensor, generators: dict[int, torch.Generator], k: Any, p: Any) -> Sampled:
            sampled = self._sampled(unseeded, logits, generators, k, p)
            self._record(logits, sampled[0])
            return sampled

        sampling.forward = forward

    def _sampled(self, unseeded: Callable[..., Sampled], logits: torch.Tensor, generators: Any, k: Any, p: Any) -> Sampled:
        """Sample seeded rows by hash, others as vLLM does; a seeded row's draw depends on seed and position alone.

        With vLLM's own seeds each request has a generator, which costs a kernel per draw and is rewound if the token is
        discarded; rewinding raises on a CPU.
        """
        seeded = sorted(index for index, row in self._rows.items() if row.seed is not None)
        if not seeded:
            return unseeded(logits, generators, k, p)
        if k is not None or p is not None:
            raise RuntimeError("top-k and top-p sampling of requests with a seed: the seed would not be used")
        rows = [self._rows[index] for index in seeded]
        keys = row_keys([row.seed or 0 for row in rows], [len(row.output_ids) for row in rows])
        if len(seeded) == len(logits):
            return self._drawn(logits, keys), None
        tokens, beside = unseeded(logits, generators, k, p)
        chosen = _moved(torch.tensor(seeded), logits.device)
        drawn = self._drawn(logits[chosen], keys)
        return tokens.index_copy(0, chosen, drawn.to(tokens.dtype)), beside

    def _drawn(self, logits: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        if len(self._tokens) != logits.shape[-1]:
            self._tokens = _moved(token_keys(logits.shape[-1]), logits.device)
        return self._draw(logits, _moved(keys, logits.device), self._tokens)

    def _record(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Measure the recorded rows. logits: ``[B, V]`` float32, as sampled from; token_ids: ``[B]`` drawn from them."""
        for top_k in {row.top_k for row in self._rows.values()}:
            indices = sorted(index for index, row in self._rows.items() if row.top_k == top_k)
            places = [(row.key, len(row.output_ids), self.version) for row in (self._rows[index] for index in indices)]
            if len(indices) == len(logits):
                values = self._measure(logits, token_ids, top_k)
            else:
                chosen = _moved(torch.tensor(indices), logits.device)
                values = self._measure(logits[chosen], token_ids[chosen], top_k)
            self._values.add(values, places)

    def take(self, keys: Sequence[str], lengths: Sequence[int]) -> list[dict[int, TokenRecord]]:
        """Return the records of each request, by position in its response of ``lengths`` tokens, and forget them here."""
        return self._values.take(keys, lengths)


def recording_args(key: str, top_k: int | None, seed: int | None) -> dict[str, Any]:
    """Return ``SamplingParams.extra_args`` of a request whose tokens are to be recorded under ``key``."""
    optional = {TOP_K_ARG: top_k, SEED_ARG: seed}
    return {KEY_ARG: key, **{name: value for name, value in optional.items() if value is not None}}


def _make_row(params: SamplingParams, output_ids: list[int]) -> _Row | None:
    extra = params.extra_args or {}
    return _Row(extra, output_ids) if KEY_ARG in extra else None


def _moved(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move values to the device, without waiting for it."""
    return values if device.type == "cpu" else values.pin_memory().to(device, non_blocking=True)


def _cpu_draw() -> Callable[..., torch.Tensor]:
    """Choose the function that draws on a CPU: vLLM's kernel, if this build has it, with a hash of the row's key; else ours."""
    fused = getattr(torch.ops._C, "fused_gumbel_argmax", None)
    if fused is None:
        return seeded_tokens
    return lambda logits, keys, tokens: fused(logits.float(), (keys[0] << 31) ^ keys[1])


def _measured(logits: torch.Tensor, token_ids: torch.Tensor, top_k: int | None) -> torch.Tensor:
    """Compute entropies and logprobs, ``[2, B]``."""
    return torch.stack(entropy_and_logprobs(logits, token_ids, top_k))


def _measured_in_blocks(logits: torch.Tensor, token_ids: torch.Tensor, top_k: int | None) -> torch.Tensor:
    """Compute entropies and logprobs, ``[2, B]``, in blocks of rows, on a CPU."""
    blocks = zip(logits.split(CPU_BLOCK_ROWS), token_ids.split(CPU_BLOCK_ROWS), strict=True)
    return torch.cat([_measured(rows, tokens, top_k) for rows, tokens in blocks], dim=-1)

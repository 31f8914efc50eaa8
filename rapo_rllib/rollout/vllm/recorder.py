"""Logprob and exact entropy of every sampled token, recorded inside vLLM in one pass of our own. algorithm.md section 5, eq. 2.

``TokenRecorder`` is a logits processor that changes nothing: vLLM tells it which request sits in which row of the batch. A hook
on the module that samples (``watch``) then sees the logits that were sampled from, temperature applied, and the tokens drawn.
Values are kept under the request's own name, which travels in ``SamplingParams.extra_args``, and by position in the response,
where later ones replace earlier ones: vLLM also samples for rows whose token it then discards (a prompt that is only partly
prefilled) and again after a preemption. On the device they wait as they are until somebody takes them, so that no step waits
for the device. Batches in which all requests are greedy never reach that module; greedy requests are not recorded at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from rapo_rllib.objective.entropy import entropy_and_logprobs

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate

KEY_ARG, TOP_K_ARG, SEED_ARG = "rapo_record_key", "rapo_entropy_top_k", "rapo_seed"
CPU_BLOCK_ROWS = 4  # fit its cache: fresh memory for a whole batch costs more than the arithmetic

TokenRecord = tuple[float, float]  # entropy, logprob; nats


class _Row:
    """One running request: its name, top k, seed, and the list of output tokens that vLLM keeps up to date."""

    __slots__ = ("key", "output_ids", "seed", "top_k")

    def __init__(self, arguments: Mapping[str, Any], output_ids: list[int]) -> None:
        self.key: str = arguments[KEY_ARG]
        self.top_k: int | None = arguments.get(TOP_K_ARG)
        self.seed: int | None = arguments.get(SEED_ARG)
        self.output_ids = output_ids


class TokenRecorder(LogitsProcessor):
    """Follows the rows of the batch, seeds what they sample, and records their tokens; returns the logits untouched."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}
        # ([2, n] entropies and logprobs on the device, name and position in the response of each)
        self._pending: list[tuple[torch.Tensor, list[tuple[str, int]]]] = []
        self._records: dict[str, dict[int, TokenRecord]] = {}

    def is_argmax_invariant(self) -> bool:
        """True: nothing is changed."""
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
        """The logits as they are. logits: ``[B, V]``."""
        return logits

    def watch(self, sampling: torch.nn.Module) -> None:
        """Seed and record whenever ``sampling``, vLLM's ``TopKTopPSampler``, draws tokens."""

        def seed(_module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            logits, generators, *rest = arguments
            return (logits, {**generators, **self._generators(logits.device)}, *rest)

        def record(_module: torch.nn.Module, arguments: tuple[Any, ...], result: tuple[Any, ...]) -> None:
            self._record(arguments[0], result[0])

        sampling.register_forward_pre_hook(seed)
        sampling.register_forward_hook(record)

    def _generators(self, device: torch.device) -> dict[int, torch.Generator]:
        """A generator per seeded row, seeded anew for every token: what is drawn depends on seed and position alone.

        vLLM's own seeds keep one generator per request and rewind it where a drawn token is discarded, which on a CPU raises.
        """
        found = {}
        for index, row in self._rows.items():
            if row.seed is not None:
                found[index] = torch.Generator(device)
                found[index].manual_seed(token_seed(row.seed, len(row.output_ids)))
        return found

    def _record(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Measure the recorded rows. logits: ``[B, V]`` float32, temperature applied; token_ids: ``[B]`` drawn from them."""
        for top_k in {row.top_k for row in self._rows.values()}:
            indices = sorted(index for index, row in self._rows.items() if row.top_k == top_k)
            places = [(row.key, len(row.output_ids)) for row in (self._rows[index] for index in indices)]
            if len(indices) == len(logits):
                values = _measure(logits, token_ids, top_k)
            else:
                chosen = torch.tensor(indices).to(logits.device, non_blocking=True)
                values = _measure(logits[chosen], token_ids[chosen], top_k)
            self._pending.append((values, places))

    def take(self, keys: Sequence[str]) -> list[dict[int, TokenRecord]]:
        """What was recorded of each request, by position in its response; it is forgotten here."""
        if self._pending:
            places = [place for _, step in self._pending for place in step]
            entropies, logprobs = torch.cat([values for values, _ in self._pending], dim=-1).tolist()
            self._pending.clear()
            for (key, position), entropy, logprob in zip(places, entropies, logprobs, strict=True):
                self._records.setdefault(key, {})[position] = (entropy, logprob)
        return [self._records.pop(key, {}) for key in keys]


def token_seed(seed: int, position: int) -> int:
    """32 bits that differ for all positions of a request, and mix all bits of both (the finaliser of MurmurHash3)."""
    mixed = (seed ^ (position * 0x9E3779B1)) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)


def recording_args(key: str, top_k: int | None, seed: int | None) -> dict[str, Any]:
    """``SamplingParams.extra_args`` of a request whose tokens are to be recorded under ``key``."""
    optional = {TOP_K_ARG: top_k, SEED_ARG: seed}
    return {KEY_ARG: key, **{name: value for name, value in optional.items() if value is not None}}


def _make_row(params: SamplingParams, output_ids: list[int]) -> _Row | None:
    extra = params.extra_args or {}
    return _Row(extra, output_ids) if KEY_ARG in extra else None


def _measure(logits: torch.Tensor, token_ids: torch.Tensor, top_k: int | None) -> torch.Tensor:
    """Entropies and logprobs ``[2, B]``, in blocks on a CPU."""
    size = CPU_BLOCK_ROWS if logits.device.type == "cpu" else len(logits)
    blocks = zip(logits.split(size), token_ids.split(size), strict=True)
    return torch.cat([torch.stack(entropy_and_logprobs(rows, tokens, top_k)) for rows, tokens in blocks], dim=-1)

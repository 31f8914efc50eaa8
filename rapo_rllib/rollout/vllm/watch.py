"""Watch what a worker's model is given, and whether it is there: in the parameters, and in what kernels made of them.

    weights --noted--> model.load_weights --> parameters, kernel copies --read back--> compared

vLLM fuses weights (q, k and v are one matrix), and on a CPU a linear layer keeps a packed copy only. Parameters are compared by
their digests; packed copies give some of their columns back, if they are multiplied by vectors with a single 1. What comes back
as it was given is found out before the first load, with the weights on disk: a model may store weights in a form of its own,
and tensor parallelism splits them. Only that is compared later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rapo_rllib.weights.packing import Digests, cast, digest

_NUM_COLUMNS = 4  # of a packed copy that are read back


@dataclass(frozen=True)
class Holder:
    """A parameter of the model, and the checkpoint's tensors that it is made of, one below the other."""

    module: torch.nn.Module
    leaf: str  # the parameter's name in the module
    dtype: torch.dtype
    sources: tuple[str, ...]

    @property
    def is_packed(self) -> bool:
        """Whether a kernel has a copy of its own."""
        return self.leaf == "weight" and hasattr(self.module, "cpu_linear")


@dataclass(frozen=True)
class Given:
    """A tensor that a model was given, as one of its parameters should have it."""

    num_rows: int
    digest: int
    columns: torch.Tensor | None  # [rows, _NUM_COLUMNS] of a matrix


class LoadWatch:
    """Notes all that goes into a model's ``load_weights``; ``begin()`` forgets it."""

    def __init__(self, model: Any) -> None:
        self._model, self._load = model, model.load_weights
        self._holders = _holders(model)
        self._by_source: dict[str, Holder] = {source: h for h in self._holders.values() for source in h.sources}
        self._comparable: set[str] = set()
        model.load_weights = self._load_and_note
        self.begin()

    def begin(self) -> None:
        """Another version comes."""
        self.received: Digests = {}  # of what came, under the names it came with
        self.loaded: set[str] = set()  # parameters that took something
        self._given: dict[str, Given] = {}

    def calibrate(self, stream: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Find out what can be compared; ``stream`` is what the model holds now."""
        for name, tensor in stream:
            self._note(name, tensor)
        self._comparable = {name for name, holder in self._holders.items() if self._holds(holder)}
        self.begin()

    def stale(self) -> list[str]:
        """Parameters that do not hold what was given for them."""
        return sorted(name for name in self._comparable if self._holds(self._holders[name]) is False)

    def _load_and_note(self, stream: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        names: set[str] = self._load(self._noted(stream))
        self.loaded.update(names)
        return names

    def _noted(self, stream: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in stream:
            self._note(name, tensor)
            yield name, tensor

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        self.received[name] = digest(tensor)
        holder = self._by_source.get(name)
        if holder is None:
            return
        held = cast(tensor, holder.dtype)
        matrix = held.dim() == 2 and held.numel() > 0
        columns = held[:, _columns(held.shape[1])].cpu() if matrix else None
        rows = held.shape[0] if held.dim() else 1
        self._given[name] = Given(rows, self.received[name] if held is tensor else digest(held), columns)

    def _holds(self, holder: Holder) -> bool | None:
        """Whether the parameter holds the given weights; None if some were not given."""
        given = [self._given[source] for source in holder.sources if source in self._given]
        if len(given) < len(holder.sources):
            return None
        return _holds_values(holder, given) and _kernel_holds(holder, given)


def _holds_values(holder: Holder, given: list[Given]) -> bool:
    parameter = getattr(holder.module, holder.leaf).detach()
    if not parameter.numel() and holder.is_packed:
        return True  # the kernel has the only copy
    start = 0
    for part in given:
        rows = parameter if not parameter.dim() else parameter[start : start + part.num_rows]  # a vocabulary may be padded
        if digest(rows) != part.digest:
            return False
        start += part.num_rows
    return True


def _kernel_holds(holder: Holder, given: list[Given]) -> bool:
    if not holder.is_packed or any(part.columns is None for part in given):
        return True
    expected = torch.cat([part.columns for part in given if part.columns is not None]).float()
    found = _kernel_columns(holder)[: len(expected)].float()
    # a kernel that multiplies in bfloat16, as oneDNN does if it is told to, has them rounded
    return torch.equal(found, expected) or torch.equal(found, expected.bfloat16().float())


def _kernel_columns(holder: Holder) -> torch.Tensor:
    """``[rows, _NUM_COLUMNS]`` of the matrix that the kernel multiplies with."""
    module: Any = holder.module
    size = _input_size(module)
    ones = torch.zeros(_NUM_COLUMNS, size, dtype=holder.dtype)
    ones[torch.arange(_NUM_COLUMNS), _columns(size)] = 1
    found: torch.Tensor = module.cpu_linear(ones, module.weight, None)
    return found.T.cpu()


def _input_size(module: Any) -> int:
    for name in ("input_size_per_partition", "embedding_dim"):
        if hasattr(module, name):
            return int(getattr(module, name))
    return int(module.weight.shape[1])


def _columns(size: int) -> torch.Tensor:
    return torch.linspace(0, size - 1, _NUM_COLUMNS).long()


def _holders(model: Any) -> dict[str, Holder]:
    """All parameters by name; a tied one under each of its names."""
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    first: dict[int, str] = {}
    holders = {}
    for path, module in model.named_modules():
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{path}.{leaf}" if path else leaf
            name_on_disk = first.setdefault(id(parameter), name)
            parent, _, own = path.rpartition(".")
            parts = fused.get(own)
            prefix = f"{parent}." if parent else ""
            sources = (name_on_disk,) if parts is None else tuple(f"{prefix}{part}.{leaf}" for part in parts)
            holders[name] = Holder(module, leaf, parameter.dtype, sources)
    return holders

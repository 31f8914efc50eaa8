"""The parts of an estimate, with bytes, of processes that live on a host and perhaps on a GPU.

Part (weights: 513 MiB, exact) --always, or in one phase--> Memory --of a host, of a GPU--> Process --count times--> Layout
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """The trust that a number deserves."""

    EXACT = "exact"  # follows from the job
    BOUND = "bound"  # at most this
    GUESS = "guess"  # measured with other jobs, on another machine


@dataclass(frozen=True)
class Part:
    """Bytes with a reason."""

    name: str
    num_bytes: int
    kind: Kind = Kind.EXACT


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Memory:
    """The parts that one process holds in one kind of memory.

    Example: ``always`` 10 bytes, ``phases`` ``{"update": 5, "checkpoint": 7}``: the peak is 17, in the checkpoint.
    """

    always: Parts = ()
    phases: Mapping[str, Parts] = field(default_factory=dict)  # one after the other, never together

    @property
    def phase(self) -> str:
        """The phase of the peak; "" without phases."""
        return max(self.phases, key=lambda name: total(self.phases[name]), default="")

    @property
    def parts(self) -> Parts:
        """The parts that are there at the peak."""
        return self.always + tuple(self.phases.get(self.phase, ()))

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return total(self.parts)

    def during(self, phase: str) -> int:
        """Bytes in a phase, which may be one that others have."""
        return total(self.always) + total(self.phases.get(phase, ()))

    def beside(self, other: Memory) -> Memory:
        """Of both together: phases of one name come at the same time."""
        names = dict.fromkeys((*self.phases, *other.phases))
        phases = {name: (*self.phases.get(name, ()), *other.phases.get(name, ())) for name in names}
        return Memory((*self.always, *other.always), phases)


@dataclass(frozen=True)
class Process:
    """A kind of process that a job runs."""

    name: str  # for people
    count: int  # that run at once
    host: Memory
    gpu: Memory | None = None  # of each GPU it uses; None: it uses none
    gpus: float = 0.0  # GPUs it uses, perhaps a fraction of one
    gpu_least: int = 0  # bytes without which an engine in it does not start
    gpu_share: float = 1.0  # of a GPU's memory that this engine may take


def total(parts: Parts) -> int:
    """Bytes of all parts."""
    return sum(part.num_bytes for part in parts)

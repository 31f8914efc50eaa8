"""What a sandbox takes and gives. Flow: code + SandboxLimits -> ForkserverSandbox.run -> SandboxResult."""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.sandbox.inside.jail import Limits

# outcomes after which a process is gone
ENDED = frozenset({"timeout", "killed", "output", "exit"})


class LostProcess(Exception):
    """A process ended between two calls, or with what held it; nothing that its code did."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one process of a sandbox."""

    timeout_s: float = 5.0  # wall clock of one call, and of its CPU time
    memory_mb: float = 512  # address space beyond the preloaded packages'
    max_output_bytes: int = 64 * 2**10  # stdout and stderr together; more ends the call
    scratch_mb: float = 32  # all files of its working folder, which there are in namespaces alone; one file: 16 MB
    scratch_files: int = 1000

    def told(self, one_call: bool) -> Limits:
        """As the process inside is told."""
        mega = 2**20
        return Limits(self.timeout_s, int(self.memory_mb * mega), int(self.scratch_mb * mega), self.scratch_files, one_call)


@dataclass(frozen=True)
class SandboxResult:
    """The outcome of one call.

    ``outcome`` is the word of the code's own process (ok, exception, syntax, memory) or of who watches it (timeout, killed,
    output, exit). The former can be forged by the code: never read a right answer from it.
    """

    output: bytes  # stdout and stderr, in order
    outcome: str
    seconds: float

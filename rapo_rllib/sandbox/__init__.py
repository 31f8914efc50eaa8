"""Run code that a model wrote. ``docs/security.md`` says what is promised, and what is not."""

from rapo_rllib.sandbox.base import ENDED, LostProcess, SandboxLimits, SandboxResult
from rapo_rllib.sandbox.forked_process import ForkedProcess
from rapo_rllib.sandbox.forkserver import ForkserverSandbox, shared_sandbox

__all__ = [
    "ENDED",
    "ForkedProcess",
    "ForkserverSandbox",
    "LostProcess",
    "SandboxLimits",
    "SandboxResult",
    "shared_sandbox",
]

"""Run code that a model wrote. ``docs/security.md`` says what is promised, and what is not."""

from rapo_rllib.sandbox.forked_process import ENDED, ForkedProcess, LostProcess, SandboxResult
from rapo_rllib.sandbox.forkserver import ForkserverSandbox, shared_sandbox
from rapo_rllib.sandbox.inside.jail import SandboxLimits

__all__ = [
    "ENDED",
    "ForkedProcess",
    "ForkserverSandbox",
    "LostProcess",
    "SandboxLimits",
    "SandboxResult",
    "shared_sandbox",
]

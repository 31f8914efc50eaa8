"""Run code that a model wrote. ``docs/security.md`` says what is promised, and what is not."""

from rapo_rllib.sandbox.base import ENDED, LostProcess, Sandbox, SandboxLimits, SandboxProcess, SandboxResult
from rapo_rllib.sandbox.settings import SandboxSettings
from rapo_rllib.sandbox.shared import shared_sandbox

__all__ = [
    "ENDED",
    "LostProcess",
    "Sandbox",
    "SandboxLimits",
    "SandboxProcess",
    "SandboxResult",
    "SandboxSettings",
    "shared_sandbox",
]

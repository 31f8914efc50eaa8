"""One sandbox per process for equal settings, for as long as someone uses it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from rapo_rllib.sandbox.base import Sandbox
from rapo_rllib.sandbox.settings import SandboxSettings

_shared: weakref.WeakValueDictionary[SandboxSettings, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_sandbox(settings: SandboxSettings) -> Sandbox:
    """The sandbox with these settings. Nothing is started yet, but the machine is looked at.

    Raises:
        ValueError: this machine does not give a layer that is required, or something that the backend needs is missing.
    """
    with _lock:
        found = _shared.get(settings)
        if found is None:
            found = _shared[settings] = _make(settings)
        return found


def _make(settings: SandboxSettings) -> Sandbox:
    """Backends are imported by those who use them."""
    if settings.backend == "remote":
        from rapo_rllib.sandbox.remote import RemoteSandbox

        return RemoteSandbox(settings.remote_url or "", settings.remote_token_env, settings.remote_format)
    from rapo_rllib.sandbox.forkserver import ForkserverSandbox
    from rapo_rllib.sandbox.machine import layers_in_force

    layers = layers_in_force(settings.namespaces, settings.allow_weak_sandbox)
    return ForkserverSandbox(layers, settings.preload, settings.packages)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)

"""Which phase a trial is in: said by the trial, read by whoever shows it.

A trial's process --say_phase--> Ray's key-value store (one key per trial, overwritten) --phase_of--> the terminal's process

The store is part of every Ray and reaches all machines of a cluster; there is nothing to start, to close, or to fall behind.
"""

from __future__ import annotations

from ray.experimental import internal_kv

_NAMESPACE = "rapo_rllib_phase"


def say_phase(trial_id: str, phase: str) -> None:
    """Note the phase of a trial; without Ray nobody is there to read it."""
    if internal_kv._internal_kv_initialized():
        internal_kv._internal_kv_put(trial_id, phase, namespace=_NAMESPACE)


def phase_of(trial_id: str) -> str | None:
    """What a trial said last; None if it has said nothing, as those of RLlib's own algorithms."""
    if not internal_kv._internal_kv_initialized():
        return None
    value = internal_kv._internal_kv_get(trial_id, namespace=_NAMESPACE)
    return None if value is None else value.decode()

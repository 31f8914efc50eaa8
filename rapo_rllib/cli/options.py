"""What the command line says beside the file; None: as the file says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunOptions:
    """Options of ``rllib train file``."""

    stop: dict[str, Any] | None = None
    env: str | None = None
    overrides: list[tuple[str, Any]] = field(default_factory=list)  # (dotted config key, value)
    checkpoint_frequency: int | None = None
    checkpoint_at_end: bool | None = None
    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None  # "min-" before it: the lowest is best
    storage_path: str | None = None
    num_samples: int | None = None
    restore: str | None = None
    scheduler: str | None = None
    scheduler_config: dict[str, Any] | None = None
    ray_address: str | None = None
    ray_num_cpus: int | None = None
    ray_num_gpus: int | None = None
    ray_object_store_memory: int | None = None
    verbose: int = 0

    @property
    def log_level(self) -> str | None:
        """RLlib's ``log_level``, as ``-v`` and ``-vv`` ask."""
        return {0: None, 1: "INFO"}.get(self.verbose, "DEBUG")

"""A callback that holds a training between the end of an iteration and its checkpoint, where somebody wants to kill it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def hold(*, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
    """If a file ``hold_ITERATION`` lies beside the buffer: once, it becomes ``held_ITERATION``, and this process waits."""
    asked = Path(algorithm.config.settings.buffer.uri).with_name(f"hold_{result['training_iteration']}")
    if asked.exists():
        asked.rename(asked.with_name(asked.name.replace("hold", "held")))
        time.sleep(600)

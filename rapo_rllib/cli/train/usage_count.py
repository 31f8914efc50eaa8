"""Ray notes for its usage statistics which of its loggers a run has, and imports them all for that: W&B takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_if_reported() -> Iterator[None]:
    """Leave that out where the statistics are off (``RAY_USAGE_STATS_ENABLED=0``), so that nobody would get the note."""
    from ray._common.usage.usage_lib import usage_stats_enabled
    from ray.air._internal import usage

    if usage_stats_enabled():
        yield
        return
    noted = usage.tag_callbacks
    usage.tag_callbacks = lambda callbacks: False
    try:
        yield
    finally:
        usage.tag_callbacks = noted

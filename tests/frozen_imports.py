"""Keeps what large libraries leave in memory out of every later garbage collection; vLLM asks for several for each engine."""

from __future__ import annotations

import gc
import sys

import pytest

LARGEST = "vllm"  # brings most of the others along


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Once, between two files, as soon as there is something to keep out."""
    if LARGEST in sys.modules and not gc.get_freeze_count() and (nextitem is None or nextitem.path != item.path):
        gc.collect()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """The interpreter ends as it would have."""
    gc.unfreeze()

"""Keeps what large libraries leave in memory out of every later garbage collection; vLLM asks for several for each engine."""

from __future__ import annotations

import gc
import sys

import pytest

LARGEST = "vllm"  # brings most of the others along
unfreeze = gc.unfreeze
is_frozen = False  # gc.get_freeze_count() tells as well, but it counts a million objects each time


def pytest_configure() -> None:
    gc.unfreeze = noted_unfreeze


def noted_unfreeze() -> None:
    """vLLM calls it when an engine ends."""
    global is_frozen
    is_frozen = False
    unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between two files, as soon as there is something to keep out."""
    global is_frozen
    if (nextitem is None or nextitem.path != item.path) and LARGEST in sys.modules and not is_frozen:
        gc.collect()
        gc.freeze()
        is_frozen = True


def pytest_sessionfinish() -> None:
    """The interpreter ends as it would have."""
    unfreeze()

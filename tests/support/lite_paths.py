"""Milvus Lite paths are opened by the test's own process, as where Ray was never begun, unless the test asks for Ray.

Once a test of a process has begun Ray, each path that a later one opens would get an actor: a new process that loads pymilvus.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

PATCH = pytest.MonkeyPatch()
LEAVING_S = 60.0  # how long an actor may take to let go of a path, on a busy machine


def asks_for_ray(item: pytest.Item) -> bool:
    """Whether other processes of Ray may want the paths of this test."""
    return "ray_session" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of the test, some of which open paths."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and not asks_for_ray(item):
        from rapo_rllib.milvus.lite import handle

        PATCH.setattr(handle, "_is_inside_ray", lambda: False)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nobody has a path any more that the next test may open: what fixtures share changes hands."""
    PATCH.undo()
    handle = sys.modules.get("rapo_rllib.milvus.lite.handle")
    if handle is None or nextitem is None:
        return
    if nextitem.path != item.path:
        for path in list(handle._here):
            if (owner := handle._here.pop(path, None)) is not None:
                owner.end()  # a handle that was left open opens it again
    if asks_for_ray(item) and not asks_for_ray(nextitem):
        for path, reached in list(handle._reached.items()):
            handle._lose(path, reached)
            end = time.monotonic() + LEAVING_S
            while Path(path).exists() and handle.Owner(path, "uri")._holder() is not None and time.monotonic() < end:
                time.sleep(0.05)

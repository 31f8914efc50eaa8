"""Python sources as trees."""

from __future__ import annotations

import ast
import gc


def tree_of(source: str) -> ast.Module:
    """``ast.parse`` without a garbage collection in its middle: CPython before 3.11.8 may fail then (python/cpython#106905)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()

"""Import of pymilvus without its side effects. Flow: ``connection.py`` and ``schema.py`` import it here."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


def pymilvus_module() -> ModuleType:
    """``pymilvus``, imported; it takes a second, the first time."""
    with _import_alone():
        import pymilvus
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs a traceback for every error that it also raises
    return pymilvus


@contextmanager
def _import_alone() -> Iterator[None]:
    """It would read a .env file into our environment, and shut all handlers of logging down.

    A handler that is shut down may close its stream: absl's does, be it a terminal or what a test runner has put there.
    """
    undo, handlers = "PYTHON_DOTENV_DISABLED" not in os.environ, logging._handlerList[:]  # type: ignore[attr-defined]
    os.environ.setdefault("PYTHON_DOTENV_DISABLED", "1")
    logging._handlerList.clear()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        logging._handlerList[:0] = handlers  # type: ignore[attr-defined]
        if undo:
            os.environ.pop("PYTHON_DOTENV_DISABLED", None)

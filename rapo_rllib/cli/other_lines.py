"""Recognise other libraries' warnings and progress: lines that belong into a log file, not on the terminal.

    worker: mark_others() --marked log records and warnings--> Ray --> terminal's process: OtherLines.takes

A record or warning of another library is marked where it is made, by the file of code that it comes from. What is printed
without Python's logging, or by processes that nobody could prepare, is known by its form. Errors, and all other lines, stay.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rapo_rllib.monitoring.quiet import quiet

MARK = "\x1e"  # "record separator": before each line of another library
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = re.compile(r"[\\/](site-packages|dist-packages|lib[\\/]python3[^\\/]*)[\\/]|^<frozen ")
_STEM = r"(?:\([\w ]+ pid=\d+\) )?"  # of vLLM's processes
_FORMS = re.compile(
    rf"^{_STEM}(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d "  # vLLM
    r"|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\t(?:DEBUG|INFO|WARNING) "  # Ray
    r"|^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [DIW] "  # Ray's core
    r"|^\[[IW]\d{4} |^\[Gloo\] "  # torch's
    r"|\d+%(?: Completed)? ?\|"  # progress bars
)
_WARNING = re.compile(r"^(\S+):\d+: \w*Warning: ")


def is_of_library(path: str) -> bool:
    """Whether a file of code is another library's, or Python's own."""
    return not path.startswith(_OURS) and _LIBRARIES.search(path) is not None


class _OfLibrary(logging.LogRecord):
    """Its text alone is marked: filters look at ``msg`` and ``args`` as they were given."""

    def getMessage(self) -> str:
        """Marked, every line."""
        return _marked(super().getMessage())


def quiet_worker() -> None:
    """Set up a worker; Ray calls it in every one that it starts."""
    quiet()
    mark_others()


def mark_others() -> None:
    """From now on, other libraries' log records below ERROR, and warnings, of this process begin with ``MARK``."""
    make = logging.getLogRecordFactory()
    if getattr(make, "marks", False):
        return

    def record_of(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.levelno < logging.ERROR and is_of_library(record.pathname):
            record.__class__ = _OfLibrary
        return record

    def take(message: Warning | str, category: type[Warning], filename: str, lineno: int) -> bool:
        if not is_of_library(filename):
            return False
        sys.stderr.write(_marked(warnings.formatwarning(message, category, filename, lineno).rstrip()) + "\n")
        return True

    record_of.marks = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(record_of)
    divert_warnings(take)


def divert_warnings(take: Callable[[Warning | str, type[Warning], str, int], bool]) -> None:
    """Show warnings from now on only where ``take``, told message, category, file and line, does not want them."""
    show = warnings.showwarning

    def show_others(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is not None or not take(message, category, filename, lineno):
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_others


def stream_handlers() -> list[logging.StreamHandler]:
    """The log handlers of this process that write to a stream."""
    known = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    found = {handler for logger in known if isinstance(logger, logging.Logger) for handler in logger.handlers}
    return [handler for handler in found if isinstance(handler, logging.StreamHandler)]


def _marked(text: str) -> str:
    return "\n".join(f"{MARK}{line}" for line in text.split("\n"))


class OtherLines:
    """Looks at the lines of one stream of one process, in order."""

    def __init__(self) -> None:
        self._in_warning = False  # the next line may be the code that it warns of
        self._took = False

    def takes(self, line: str) -> bool:
        """Whether the line belongs to other libraries' warnings and progress."""
        found = _WARNING.match(line)
        own = MARK in line or _FORMS.search(line) is not None or (found is not None and is_of_library(found[1]))
        goes_on = (self._in_warning and line.startswith("  ")) or (self._took and not line.strip())
        self._in_warning = found is not None and own
        self._took = own or goes_on
        return self._took

"""Write what Ray's workers and other libraries say during a training to a file; the terminal keeps what concerns its user.

workers' lines --Ray's dispatcher--+--> LogFile --every line of a worker, and what is other libraries'--> EXPERIMENT/log.txt
records and warnings of this process +        --the rest--> the terminal, as ever
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rapo_rllib.cli.other_lines import MARK, OtherLines, divert_warnings, is_of_library, stream_handlers

NAME = "log.txt"


class LogFile(logging.Filter):
    """Takes lines; as a filter of log handlers, the records of other libraries below ERROR.

    Args:
        path: appended to; made with the first line; may be changed at any time. Where it cannot be written, everything stays
            on the terminal.
        shows_all: keep nothing from the terminal.
    """

    def __init__(self, path: Path, shows_all: bool = False) -> None:
        super().__init__()
        self.path, self._shows_all = path, shows_all
        self._lines: defaultdict[tuple, OtherLines] = defaultdict(OtherLines)  # by machine, process and stream
        self._lock = threading.Lock()
        self._watched: list[logging.Handler] = []

    def shown(self, data: Mapping[str, Any]) -> list[str]:
        """Of a batch of a worker's lines, as Ray has it, those for the terminal; all of them are in the file."""
        lines = [str(line) for line in data.get("lines", ())]
        process = (data.get("ip"), data.get("pid"), data.get("is_err"))
        with self._lock:
            hidden = [self._lines[process].takes(line) for line in lines]
        clean = [line.replace(MARK, "") for line in lines]
        who = f"({data.get('actor_name') or data.get('task_name') or 'worker'} pid={data.get('pid')}) "
        if not self._write([f"{who}{line}" for line in clean]) or self._shows_all:
            return clean
        return [line for line, is_hidden in zip(clean, hidden, strict=True) if not is_hidden]

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a handler of the terminal shall have the record."""
        if self._shows_all or record.levelno >= logging.ERROR or not is_of_library(record.pathname):
            return True
        return not self._write([f"({record.name}) {record.levelname} {line}" for line in record.getMessage().splitlines()])

    def warned(self, message: Warning | str, category: type[Warning], filename: str, lineno: int) -> bool:
        """Take a warning of another library; False: it is none, or is to be shown."""
        if self._shows_all or not is_of_library(filename):
            return False
        return self._write([f"{filename}:{lineno}: {category.__name__}: {message}"])

    def watch(self) -> None:
        """Filter the handlers that write to the terminal; worth repeating after imports, which add some."""
        for handler in _terminal_handlers():
            if self not in handler.filters:
                handler.addFilter(self)
                self._watched.append(handler)

    def unwatch(self) -> None:
        """Filter none any more."""
        while self._watched:
            self._watched.pop().removeFilter(self)

    def _write(self, lines: list[str]) -> bool:
        """Whether the lines are in the file."""
        stamp = time.strftime("%m-%d %H:%M:%S")
        with suppress(OSError), self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{stamp} {line}\n" for line in lines)
            return True
        return False


@contextmanager
def logged(log: LogFile) -> Iterator[LogFile]:
    """Until the block ends, lines of Ray's workers, log records and warnings go through ``log``; Ray begins and ends inside."""
    dispatcher, show = _dispatcher(), warnings.showwarning
    emit = dispatcher.emit

    def emit_shown(data: dict) -> None:
        if data.get("pid") == "autoscaler":  # its lines are events, which Ray chooses from
            emit(data)
        elif lines := log.shown(data):
            emit({**data, "lines": lines})

    dispatcher.emit = emit_shown
    divert_warnings(log.warned)
    log.watch()
    try:
        yield log
    finally:
        dispatcher.emit, warnings.showwarning = emit, show
        log.unwatch()


def _dispatcher() -> Any:
    """The place where Ray hands over the lines of all workers."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher

    return global_worker_stdstream_dispatcher


def _terminal_handlers() -> list[logging.Handler]:
    """Those that write to a stream, files excepted, and the one that Python uses where there is none."""
    streams: list[logging.Handler] = [each for each in stream_handlers() if not isinstance(each, logging.FileHandler)]
    return streams + ([logging.lastResort] if logging.lastResort else [])

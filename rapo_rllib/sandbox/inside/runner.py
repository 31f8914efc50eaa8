"""Run the pieces of code that come over a socket, all with the same variables, and answer each with one byte, its status.

8 bytes of length, code -> what it prints on stdout and stderr -> one byte of :data:`STATUSES`
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import traceback
from types import CodeType, ModuleType

from .jail import SOCKET_FD

SOURCE = "<python>"
STATUSES = ("ok", "exception", "syntax", "memory", "killed", "exit")
_OK, _EXCEPTION, _SYNTAX, _MEMORY, KILLED, EXIT = range(6)  # the zygote sends the last two


def serve() -> None:
    """Run code until the socket ends."""
    sys.argv[:] = sys.orig_argv[:] = [""]
    main = sys.modules["__main__"] = ModuleType("__main__")
    names = vars(main)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # site would define them
    while (code := _read_code()) is not None:
        os.write(SOCKET_FD, bytes([run(code, names)]))


def _read_code() -> str | None:
    length = int.from_bytes(_read(8), "little")
    return _read(length).decode("utf-8", "replace") if length else None


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := os.read(SOCKET_FD, size - len(data))):
        data += chunk
    return data


def run(code: str, names: dict[str, object]) -> int:
    """Run one piece of code, print what it raises, and return the index of its status."""
    status = _OK
    try:
        _execute(code, names)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code)  # noqa: T201 - the output is the result
    except BaseException as error:
        status = _report(error, code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the code closed them
        status = status or _EXCEPTION
    return status


def _execute(code: str, names: dict[str, object]) -> None:
    """Run statements; the value of a last expression is printed unless it is None, as in a notebook."""
    tree = ast.parse(code, SOURCE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(_compiled(tree), names)
    if isinstance(last, ast.Expr):
        value = eval(_compiled(ast.Expression(last.value)), names)
        if value is not None:
            print(repr(value))  # noqa: T201


def _compiled(tree: ast.Module | ast.Expression) -> CodeType:
    return compile(tree, SOURCE, "exec" if isinstance(tree, ast.Module) else "eval", dont_inherit=True)


def _report(error: BaseException, code: str) -> int:
    """Print the last line of the traceback, with a line number if the code has several lines, and return the status."""
    if isinstance(error, MemoryError):
        print("MemoryError: the memory limit was reached")  # noqa: T201
        return _MEMORY
    # the code is compiled by this file: an error without a frame of the code itself is one of compiling it
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == SOURCE]
    syntax = not lines and isinstance(error, (SyntaxError, ValueError))
    line = getattr(error, "lineno", None) if syntax else (lines[-1] if lines else None)
    message = traceback.format_exception_only(type(error), error)[-1].strip()
    print(f"{message} (line {line})" if line and code.strip().count("\n") else message)  # noqa: T201
    return _SYNTAX if syntax else _EXCEPTION


def warm_up() -> None:
    """Load the parts of the standard library that this file would load with the first piece of code."""
    with open(os.devnull, "w") as nowhere:
        stdout, sys.stdout = sys.stdout, nowhere
        run("1 +", {})
        run("1 / 0", {})
        sys.stdout = stdout

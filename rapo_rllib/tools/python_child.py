"""Runs one piece of model code; started by ``tools/python.py`` as ``python -I -S python_child.py`` with the limits of ``main``.

Two processes: a supervisor, which waits with a time limit and afterwards kills every descendant, also those that moved to a
session of their own; and the runner, which limits itself and runs the code that came over stdin. How it went is the exit
status. Imports are few because each costs every call milliseconds: no ``site``, ``typing``, ``ast`` or ``signal`` (the latter
load ``re`` and ``enum``), and nothing of ``rapo_rllib``.
"""

import _ast
import _signal as signal
import builtins
import ctypes
import os
import resource
import sys

EXCEPTION, SYNTAX, MEMORY, TIMEOUT, KILLED = 101, 102, 103, 104, 105
SOURCE = "<python>"
_PR_SET_CHILD_SUBREAPER = 36
_MAX_OPEN_FILES = 64


class _OutOfTime(Exception):
    pass


class _Stopped(Exception):
    pass


def main(timeout_s: float, cpu_s: int, memory_bytes: int, file_bytes: int) -> int:
    """Read the code, run it in a child, return the exit status. Further arguments of the program are folders of packages."""
    code = sys.stdin.buffer.read().decode("utf-8", "replace")
    # orphaned descendants become children of this process instead of init's
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runner = os.fork()
    if runner == 0:
        os._exit(_run(code, cpu_s, memory_bytes, file_bytes))
    signal.signal(signal.SIGALRM, _raise_out_of_time)
    signal.signal(signal.SIGTERM, _raise_stopped)
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        _, status = os.waitpid(runner, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        outcome = _outcome(status)
    except _OutOfTime:
        outcome = TIMEOUT
    except _Stopped:
        outcome = KILLED
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_descendants()
    return outcome


def _raise_out_of_time(*_: object) -> None:
    raise _OutOfTime


def _raise_stopped(*_: object) -> None:
    raise _Stopped


def _outcome(status: int) -> int:
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    return TIMEOUT if os.WTERMSIG(status) == signal.SIGXCPU else KILLED


def _kill_descendants() -> None:
    """Kill children until none is left: when one dies, its own children become ours."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _limit(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_OPEN_FILES, _MAX_OPEN_FILES))


def _run(code: str, cpu_s: int, memory_bytes: int, file_bytes: int) -> int:
    status = 0
    try:
        _limit(cpu_s, memory_bytes, file_bytes)
        _execute(code)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code)  # noqa: T201 - the output is the result
    except BaseException as error:
        status = _report(error, code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the code closed them
        status = status or EXCEPTION
    return status


def _execute(code: str) -> None:
    """Run statements; the value of a last expression is printed unless it is None, as in a notebook."""
    tree = compile(code, SOURCE, "exec", _ast.PyCF_ONLY_AST)
    assert isinstance(tree, _ast.Module)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, _ast.Expr):
        tree.body.pop()
    names: dict[str, object] = {"__name__": "__main__"}
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # site would define them
    exec(compile(tree, SOURCE, "exec"), names)
    if isinstance(last, _ast.Expr):
        value = eval(compile(_ast.Expression(last.value), SOURCE, "eval"), names)
        if value is not None:
            print(repr(value))  # noqa: T201


def _report(error: BaseException, code: str) -> int:
    """Write the last line of the traceback, with the line of the code if it has several; return the exit status."""
    if isinstance(error, MemoryError):
        print("MemoryError: the memory limit was reached")  # noqa: T201
        return MEMORY
    import traceback

    # compile() is called by this file: an error without a frame of the code itself is one of compiling it
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == SOURCE]
    syntax = not lines and isinstance(error, (SyntaxError, ValueError))
    line = getattr(error, "lineno", None) if syntax else (lines[-1] if lines else None)
    message = traceback.format_exception_only(type(error), error)[-1].strip()
    print(f"{message} (line {line})" if line and code.strip().count("\n") else message)  # noqa: T201
    return SYNTAX if syntax else EXCEPTION


if __name__ == "__main__":
    sys.path.extend(sys.argv[5:])
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:5])))

"""Symbolic equality by math-verify, in worker processes that are ended after a time limit.

(predicted, gold) -> ``comparable`` -> Workers -> ``math_worker.py``
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import wait
from queue import LifoQueue
from subprocess import DEVNULL, PIPE

from rapo_rllib.rewards import math_worker
from rapo_rllib.rewards.latex import depths

logger = logging.getLogger(__name__)

_SECONDS = 3.0  # of computing, for one comparison
_PATIENCE_S = 60  # wall-clock limit of one comparison, however busy the machine is
_WORKERS = 4  # comparisons at a time in one process of the run
_STARTS = 3  # tries to start a worker that the system ends before it is ready, as it does if memory is short
# Families of related functions. A function without a relative in the gold answer is a calculation that was not carried out.
_FAMILIES = tuple(
    frozenset(names.split())
    for names in (
        "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth",
        "log ln lg exp",
        *("binom dbinom tbinom choose !", "sum prod", "int iint oint", "lim limsup liminf", "max min sup inf", "gcd lcm"),
        *("lfloor rfloor lceil rceil", "mod bmod pmod equiv", "det", "| vert lvert rvert"),
    )
)
# commands that only write a value
_WRITING = (
    "frac sqrt pi cdot times div le ge ne lt gt in infty cup cap setminus pm mp circ theta alpha beta gamma delta "
    "epsilon lambda mu phi varphi psi omega rho sigma tau Delta Gamma Omega ell mathbb emptyset varnothing { }"
)
_PLAIN = frozenset(_WRITING.split())
_MAX_DEPTH = 8
_COMMAND = re.compile(r"\\([a-zA-Z]+|.)", re.DOTALL)
_FUNCTION = re.compile(r"\\([a-zA-Z]+|.)|[!|]", re.DOTALL)
_RELATION = re.compile(r"(?<![\\])[<>=]|\\(?:le|ge|ne|in|cup|cap|setminus)(?![a-zA-Z])")
_ROW = re.compile(r"[A-Z]{3,}|[A-Z]\d+")  # a name: \angle ABC is not \angle ACB, though the products of the letters are equal
_PRODUCT = re.compile(r"\\(?:cdot|times)(?![a-zA-Z])|\*")
_SET = re.compile(r"\s*(?:\(|\[|\\\{).*(?:\)|\]|\\\})\s*", re.DOTALL)


class NoVerdict(Exception):
    """Lack of a verdict on whether two answers are equal: time or memory ran out."""


class Workers:
    """Worker processes that have loaded math-verify, started when needed. Thread-safe.

    Args:
        seconds: limit of computing for one comparison; waiting for a worker does not count.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._idle: LifoQueue[subprocess.Popen[bytes] | None] = LifoQueue()  # None: one that is not started
        for _ in range(_WORKERS):
            self._idle.put(None)

    def equal(self, predicted: str, gold: str) -> bool | None:
        """Return whether two texts in LaTeX are symbolically equal; None if time or memory runs out.

        Raises:
            RuntimeError: math-verify cannot be loaded.
        """
        worker, reply = self._idle.get(), b""
        try:
            if worker is not None and worker.poll() is not None:  # it was killed meanwhile
                with worker:
                    worker = None
            worker = worker or _started()
            reply = _reply(worker, json.dumps([predicted, gold, self._seconds]))
        finally:
            self._idle.put(worker if reply else None)
        if not reply:
            with worker:
                worker.kill()
            logger.warning("no verdict on %.80r against %.80r within %g s: not equal", predicted, gold, self._seconds)
        return reply == b"1\n" if reply else None


def _started() -> subprocess.Popen[bytes]:
    """Start a worker, and wait until it has loaded math-verify. The worker ends with this process, which closes its stdin."""
    command = [sys.executable, "-P", math_worker.__file__]
    for _ in range(_STARTS):
        # a session of its own: Ctrl-C is for the trainer
        worker = subprocess.Popen(command, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True)
        assert worker.stdout is not None
        if worker.stdout.readline():
            return worker
        with worker:  # waits for its end
            pass
        if worker.returncode > 0:
            raise RuntimeError("cannot compare mathematical answers: `import math_verify` fails; install math-verify")
    raise RuntimeError(
        f"cannot compare mathematical answers: the system ended a worker {_STARTS} times before it was ready (signal "
        f"{-worker.returncode}); free memory"
    )


def _reply(worker: subprocess.Popen[bytes], request: str) -> bytes:
    """Send a request to a worker, and read the reply; empty if the worker ended, or does not answer."""
    assert worker.stdin is not None and worker.stdout is not None
    with suppress(BrokenPipeError):
        worker.stdin.write(f"{request}\n".encode())
        if wait([worker.stdout.fileno()], _PATIENCE_S):
            return worker.stdout.readline()
    return b""


_verdict = lru_cache(4096)(
    Workers().equal
)  # members of a group often give the same answer; a comparison that was given up is not tried again


def _begin_anew() -> None:
    """Begin with new workers after a fork: pipes, locks and running comparisons stay with the parent process."""
    global _verdict
    _verdict = lru_cache(4096)(Workers().equal)


os.register_at_fork(after_in_child=_begin_anew)


def symbolically_equal(predicted: str, gold: str) -> bool:
    """Return whether two formulas in LaTeX are equal, and nothing in ``predicted`` is left to calculate.

    Raises:
        NoVerdict: time or memory ran out.
    """
    if not comparable(predicted, gold):
        return False
    found = _verdict(predicted, gold)
    if found is None:
        raise NoVerdict(predicted)
    return found


def is_relation(text: str) -> bool:
    """Return whether a tidied answer is an equation, an inequality or a union, not an expression."""
    return _RELATION.search(text) is not None


def comparable(predicted: str, gold: str) -> bool:
    r"""Return whether ``predicted`` is written in a form that an answer equal to ``gold`` may have.

    >>> comparable("3 - x", "-x + 3"), comparable("not x", "x"), comparable(r"\phantom{1}x", "x"), comparable(r"\sum x", "x")
    (True, False, False, False)
    """
    given, wanted = (frozenset(found[1] or found[0] for found in _FUNCTION.finditer(text)) for text in (predicted, gold))
    related = frozenset().union(*(family for family in _FAMILIES if family & wanted))
    if not _balanced(predicted) or not given <= _PLAIN | wanted | related:
        return False
    written = _compact(_PRODUCT.sub("", predicted)).casefold()
    if not all(row.casefold() in written for row in _ROW.findall(_compact(gold))):
        return False
    more = _letters(predicted) - _letters(gold)
    # an interval has no variable, the inequality that stands for it has one
    return not more or (len(more) == 1 and is_relation(predicted) and _SET.fullmatch(gold) is not None)


def _compact(text: str) -> str:
    """Strip blanks and commands."""
    return re.sub(r"\s", "", _COMMAND.sub(";", text))


def _letters(text: str) -> set[str]:
    return {character.casefold() for character in _COMMAND.sub(" ", text) if character.isalpha()}


def _balanced(text: str) -> bool:
    """Return whether all braces are closed, and brackets not nested too deep: each level doubles the time to read them."""
    plain = _COMMAND.sub(" ", text)
    braces = list(depths(plain, "{", "}"))
    return min(braces, default=0) >= 0 and braces[-1:] in ([], [0]) and max(depths(plain), default=0) <= _MAX_DEPTH

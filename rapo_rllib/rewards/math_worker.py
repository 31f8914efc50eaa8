"""Compares mathematical expressions with math-verify; started by ``symbolic.py`` as ``python math_worker.py``.

One JSON list ``[predicted, gold]`` a line over stdin, one ``true`` or ``false`` a line over stdout. It is a process of its own
because a model can write an expression whose evaluation never ends (9^{9^{9^9}}), and that can only be stopped from outside.
"""

import json
import logging
import resource
import signal
import sys

_MEMORY_BYTES = 2 * 2**30  # of addresses; sympy's own are a quarter of it
LAST_RESORT_S = 60  # after so long the system ends a worker that nobody is left to kill


def equal(predicted: str, gold: str) -> bool:
    r"""Whether math-verify finds the two equal. An inequality may stand for an interval: ``x > 3`` for ``(3, \infty)``."""
    from math_verify import parse, verify

    # None: no timeouts by signals, the caller kills this process
    sides = [parse(f"\\boxed{{{side}}}", parsing_timeout=None) for side in (gold, predicted)]
    return bool(verify(*sides, timeout_seconds=None, allow_set_relation_comp=True))


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify logs whatever it cannot read
    equal("[1,x]", "x^2")  # loads what sympy loads late; that takes seconds, which are no part of a comparison
    replies, sys.stdout = sys.stdout, sys.stderr
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        signal.alarm(LAST_RESORT_S)
        try:
            verdict = equal(*json.loads(line))
        except (Exception, RecursionError, MemoryError):  # sympy raises whatever its inputs suggest; it is then not equal
            verdict = False
        signal.alarm(0)
        replies.write(json.dumps(verdict) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

"""Compares mathematical expressions with math-verify; started by ``math_equality.py`` as ``python math_worker.py``.

One JSON list ``[predicted, gold]`` a line over stdin, one ``true`` or ``false`` a line over stdout. It is a process of its own
because a model can write an expression whose evaluation never ends (9^{9^{9^9}}), and that can only be stopped from outside.
"""

import json
import logging
import resource
import sys

_MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify logs whatever it cannot read
    from math_verify import parse, verify

    replies, sys.stdout = sys.stdout, sys.stderr
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        predicted, gold = json.loads(line)
        try:
            # None: no timeouts by signals, the caller kills this process
            sides = [parse(f"\\boxed{{{side}}}", parsing_timeout=None) for side in (gold, predicted)]
            equal = bool(verify(*sides, timeout_seconds=None))
        except (Exception, RecursionError, MemoryError):  # sympy raises whatever its inputs suggest; it is then not equal
            equal = False
        replies.write(json.dumps(equal) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

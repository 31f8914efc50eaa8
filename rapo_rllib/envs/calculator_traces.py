r"""Human-written step traces from GSM8K's answers, whose calculations are annotated: ``48/2 = <<48/2=24>>24 clips``.

row -> segments (think, call, result, answer) -> ``traces.recorded.rendered_steps`` -> ExpertTrajectory
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rapo_rllib.traces.recorded import rendered_steps
from rapo_rllib.types import ExpertTrajectory, Question

logger = logging.getLogger(__name__)

ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
_ARITHMETIC = re.compile(r"(?!.*\*\*)[\d.+\-*/%() ]{1,200}", re.ASCII)  # without powers, which can take for ever
_TOLERANCE = 1e-2  # people round to cents


def calculated(expression: str) -> float | None:
    """Evaluate an expression of numbers, ``+ - * / // %`` and brackets; None if it is anything else or has no value.

    >>> calculated("2*(3+0.5)"), calculated("2*x"), calculated("1/0")
    (7.0, None, None)
    """
    if _ARITHMETIC.fullmatch(expression) is None:
        return None
    try:
        return float(eval(expression.strip(), {"__builtins__": {}}))  # digits and operators only: it can do nothing else
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None


def annotated_segments(answer: str) -> list[dict[str, str]] | None:
    r"""Split an annotated answer into segments of a trace file; None if a calculation is wrong or the final answer missing.

    Example: ``"48/2 = <<48/2=24>>24 clips.\n#### 24"`` is think "48/2 = ", call "print(48/2)", result "24", think " clips.",
    answer "24".
    """
    solution, marker, final = answer.rpartition("####")
    if not marker or not final.strip():
        return None
    segments: list[dict[str, str]] = []
    rest = solution
    while match := ANNOTATION.search(rest):
        expression, stated = match[1].strip(), match[2].strip()
        value, told = calculated(expression), calculated(stated)
        if value is None or told is None or not math.isclose(value, told, rel_tol=1e-6, abs_tol=_TOLERANCE):
            return None
        segments += [
            {"type": "think", "text": rest[: match.start()]},
            {"type": "call", "text": f"print({expression})", "tool": "python"},
            {"type": "result", "text": stated},
        ]
        rest = rest[match.end() :].removeprefix(match[2])
    return [*segments, {"type": "think", "text": rest}, {"type": "answer", "text": final.strip()}]


def annotated_trajectories(
    rows: Iterable[tuple[Question, Mapping[str, Any]]], answer_field: str = "answer"
) -> Iterator[ExpertTrajectory]:
    """Yield a trajectory for each row whose calculations are right, in order; log the number of rows left out.

    Raises:
        ValueError: no row has a usable annotated answer.
    """
    kept = left_out = 0
    for question, row in rows:
        answer = row.get(answer_field)
        segments = annotated_segments(answer) if isinstance(answer, str) and ANNOTATION.search(answer) else None
        if segments is None:
            left_out += 1
        else:
            kept += 1
            yield ExpertTrajectory(question, rendered_steps(segments), 1.0, "annotations")
    if not kept:
        raise ValueError(
            "env_config.traces = 'annotations': no answer of the data set has GSM8K's <<3+5=8>>; name a file of trajectories"
        )
    if left_out:
        logger.info("%d of %d annotated answers were left out: no calculation, or a wrong one", left_out, kept + left_out)

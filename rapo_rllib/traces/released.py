r"""Lines ``{"key", "value", "reward"}`` as the authors' released code writes them (algorithm.md sections 4, 9). Single steps.

The fields of a line, and the fields of the step trace that they become:

    key     the whole decoded prompt, then the steps so far: "system\n…\nuser\nQUESTION\nassistant\nHISTORY", with or without
            the special tokens around the roles (<|im_start|>, <|im_end|>).
            question = what is between the first "user" line and the "assistant" line after it; history = what follows that.
            A key without role lines: the question ends where the first tag of the text protocol begins.
    value   the step, its tool's result included -> text
    reward  of the trajectory -> reward (missing: 1)
    source  optional -> source (missing: "released"); question_id, optional -> question_id
            step_index = number of results in the history

The released code fills trajectories up to ten steps with the key and value "null": these lines are dropped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rapo_rllib.traces.rows import json_rows, reward_field, storable, text_field
from rapo_rllib.types import StepTrace

SOURCE = "released"
PADDING = "null"
RESULT_END = "</result>"
_ROLES = re.compile(
    r"(?:^|\n)(?:<\|im_start\|>)?user\n(.*?)(?:<\|im_end\|>)?\s*\n(?:<\|im_start\|>)?assistant\n(.*)", re.DOTALL
)
_FIRST_TAG = re.compile(r"\s*(?=<(?:think|python|search|answer)>)")


def read_released(path: Path, dropped: Counter[str]) -> Iterator[StepTrace]:
    """Yield the steps of a file, in its order, without ids.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        dropped: counts left-out lines by reason.

    Raises:
        ValueError: the file or a line is wrong, naming file, line and field.
    """
    for where, row in json_rows(path):
        key, value = text_field(row, "key", where), text_field(row, "value", where)
        if PADDING in (key.strip(), value.strip()):
            dropped["padding of the released code ('null')"] += 1
        elif not value.strip():
            dropped["empty value"] += 1
        else:
            yield storable(_trace(row, key, value, where), where)


def _trace(row: dict[str, Any], key: str, value: str, where: str) -> StepTrace:
    question, history = split_key(key)
    if not question:
        raise ValueError(f"{where}: field 'key' holds no question, got {key[:80]!r}")
    return StepTrace(
        id="",
        question=question,
        history=history,
        text=value,
        reward=reward_field(row, where, 1.0),
        question_id=text_field(row, "question_id", where, ""),
        step_index=history.count(RESULT_END),
        source=text_field(row, "source", where, SOURCE),
    )


def split_key(key: str) -> tuple[str, str]:
    r"""Split a key into question and history.

    >>> split_key("system\nSolve it.\nuser\nWhat is 3 + 5?\nassistant\n<think>Add.</think>")
    ('What is 3 + 5?', '<think>Add.</think>')
    >>> split_key("What is 3 + 5?\n<think>Add.</think>")
    ('What is 3 + 5?', '<think>Add.</think>')
    """
    roles = _ROLES.search(key)
    if roles:
        return roles[1].strip(), roles[2]
    tag = _FIRST_TAG.search(key)
    return (key[: tag.start()].strip(), key[tag.end() :]) if tag else (key.strip(), "")

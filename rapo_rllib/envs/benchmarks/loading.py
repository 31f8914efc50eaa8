"""The questions of a named benchmark, from Hugging Face or a local copy."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rapo_rllib.envs.benchmarks.table import BENCHMARKS, Benchmark
from rapo_rllib.envs.dataset_files import read_once, read_rows
from rapo_rllib.envs.dataset_rows import accepted, field_value, question_from_row
from rapo_rllib.protocol.steps import last_box
from rapo_rllib.types import Question

logger = logging.getLogger(__name__)

_BARE_BOX = re.compile(r"\\boxed\s+([^\s$]+)")  # TeX boxes one token without braces, as a few of MATH's solutions do


def split_name(dataset: str) -> tuple[Benchmark, str | None] | None:
    """The benchmark that ``dataset`` names, and where its local copy is; None if it names none.

    >>> split_name("math500=./test.jsonl")[1], split_name("openai/gsm8k")
    ('./test.jsonl', None)
    """
    name, _, path = dataset.partition("=")
    benchmark = BENCHMARKS.get(name)
    return None if benchmark is None else (benchmark, path or None)


@read_once
def benchmark_questions(
    benchmark: Benchmark, path: str | None, split: str = "test", limit: int | None = None
) -> tuple[Question, ...]:
    """Questions whose ``source`` tells the scorer ``auto`` how to score them.

    Args:
        benchmark: which.
        path: of a local copy: a .jsonl[.gz], .json, .parquet or .csv file, or a folder; None: Hugging Face.
        split: ``test``: what is asked in an evaluation; or ``train``.
        limit: rows to read.

    Raises:
        ValueError: the data is not there (says how to obtain it), or a row lacks question or answer.
    """
    upstream = benchmark.split if split == "test" else benchmark.train_split
    if upstream is None:
        raise ValueError(f"benchmark {benchmark.name!r} has no questions to train on: name it in env_config.test_dataset only")
    rows = _rows(benchmark, path, upstream, limit)
    found = []
    for number, row in enumerate(rows, start=1):
        if benchmark.attachment_field and row.get(benchmark.attachment_field):
            continue
        question = _question(benchmark, row, f"{path or benchmark.hub_id}, row {number}", f"{benchmark.name}-{number}")
        if question.answer:
            found.append(question)
    if len(found) < len(rows):
        left_out = len(rows) - len(found)
        logger.warning("%s: left out %d questions that come with a file or have no final answer", benchmark.name, left_out)
    return tuple(found)


def _rows(benchmark: Benchmark, path: str | None, split: str, limit: int | None) -> list[dict[str, Any]]:
    try:
        return read_rows(path or benchmark.hub_id, benchmark.name, split, benchmark.config, limit)
    except ValueError as error:
        raise ValueError(f"benchmark {error}" + ("" if benchmark.own else f". {_how_to_obtain(benchmark)}")) from error


def _how_to_obtain(benchmark: Benchmark) -> str:
    return (
        f"To obtain it: where there is a network, run hf download --repo-type dataset {benchmark.hub_id}, "
        "after hf auth login if its page has terms. "
        f"Name a local copy (.jsonl, .jsonl.gz, .json, .parquet, .csv or a folder) as {benchmark.name}=PATH. "
        f"Licence: {benchmark.licence}"
    )


def _question(benchmark: Benchmark, row: Mapping[str, Any], where: str, id: str) -> Question:
    fields = (benchmark.question_field, benchmark.answer_field)
    # a local copy may have other field names, which are then found as in any file of questions
    text_field, answer_field = (name if accepted(field_value(row, name)) else None for name in fields)
    try:
        question = question_from_row(row, where, id, text_field, answer_field)
    except ValueError as error:
        if not benchmark.own:
            raise
        told, _, _ = str(error).partition(". Name one")  # in keys that an evaluation does not have
        raise ValueError(f"{told}. Rename one of them") from None
    if benchmark.boxed and answer_field is not None:
        question = replace(question, answer=_final_answer(question.answer))
    said = benchmark.own and "/" in question.source
    return question if said else replace(question, source=f"{benchmark.name}/{benchmark.scorer}")


def _final_answer(solution: str) -> str:
    """Empty where the solution gives none, as one of MATH's does."""
    found = last_box(solution)
    if found is None and (bare := _BARE_BOX.findall(solution)):
        found = bare[-1]
    return found or ""

"""Named benchmarks and their questions, for ``rllib evaluate`` and for ``dataset`` and ``test_dataset`` of ``env_config``.

name, or NAME=PATH -> table -> dataset_files -> dataset_rows -> Question
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rapo_rllib.envs.dataset_files import read_once, read_rows
from rapo_rllib.envs.dataset_rows import accepted, field_value, question_from_row
from rapo_rllib.protocol.steps import last_box
from rapo_rllib.types import Question

logger = logging.getLogger(__name__)

MATHS, WORDS = "math", "qa"  # scorers
_MAA = "problems of the Mathematical Association of America"
_FLASHRAG, _GOLDEN = "RUC-NLPIR/FlashRAG_datasets", "golden_answers"
_BARE_BOX = re.compile(r"\\boxed\s+([^\s$]+)")  # TeX boxes one token without braces, as a few of MATH's solutions do


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. A local copy may have its field names, or any that ``rapo/questions`` tries by default."""

    name: str
    hub_id: str  # Hugging Face id
    split: str  # whose questions are asked
    scorer: str  # MATHS, or WORDS (token F1; correct: exact match)
    licence: str  # as its authors give it; the user's to observe
    config: str | None = None  # of the Hugging Face data set
    train_split: str | None = None  # None: nothing to train on
    question_field: str = "question"
    answer_field: str = "answer"
    boxed: bool = False  # the answer field is a worked solution, whose last \\boxed{} is the answer
    attachment_field: str | None = None  # rows that have something there need a file, which no tool here opens: left out
    own: bool = False  # a user's own file

    @property
    def tools(self) -> tuple[str, ...]:
        """Default tools to solve the benchmark with; search is not among them, as a corpus must be named for it."""
        return ("python",) if self.scorer == MATHS else ()


_ALL = (
    Benchmark("gsm8k", "openai/gsm8k", "test", MATHS, "MIT", "main", "train"),
    Benchmark(
        "math", "DigitalLearningGmbH/MATH-lighteval", "test", MATHS, "MIT", None, "train", "problem", "solution", boxed=True
    ),
    Benchmark("math500", "HuggingFaceH4/MATH-500", "test", MATHS, "MIT", question_field="problem"),
    Benchmark("aime24", "HuggingFaceH4/aime_2024", "train", MATHS, _MAA, question_field="problem"),
    Benchmark("aime25", "math-ai/aime25", "test", MATHS, _MAA, question_field="problem"),
    Benchmark("webwalkerqa", "callanwu/WebWalkerQA", "main", WORDS, "Apache-2.0"),
    Benchmark("hotpotqa", "hotpotqa/hotpot_qa", "validation", WORDS, "CC BY-SA 4.0", "distractor", "train"),
    Benchmark("2wikimultihopqa", _FLASHRAG, "dev", WORDS, "Apache-2.0", "2wikimultihopqa", "train", answer_field=_GOLDEN),
    Benchmark("musique", "dgslibisey/MuSiQue", "validation", WORDS, "CC BY 4.0", None, "train"),
    Benchmark("bamboogle", _FLASHRAG, "test", WORDS, "MIT", "bamboogle", answer_field=_GOLDEN),
    Benchmark("simpleqa", "basicv8vc/SimpleQA", "test", WORDS, "MIT", question_field="problem"),
    Benchmark(
        "gaia",
        "gaia-benchmark/GAIA",
        "validation",
        WORDS,
        "terms on its page; it must not be published again",
        "2023_all",
        question_field="Question",
        answer_field="Final answer",
        attachment_field="file_name",
    ),
)
BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}


def own_benchmark(name: str, in_words: bool) -> Benchmark:
    """Make a benchmark of a user's own questions; the field ``ability`` may choose the scorer."""
    return Benchmark(name, "", "test", WORDS if in_words else MATHS, "", own=True)


def split_name(dataset: str) -> tuple[Benchmark, str | None] | None:
    """Find the benchmark that ``dataset`` names, and the path of its local copy, if given; None if it names none.

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
    """Load the questions of a benchmark; their ``source`` tells the scorer ``auto`` how to score them.

    Args:
        benchmark: to load.
        path: of a local copy: a .jsonl[.gz], .json, .parquet or .csv file, or a folder; None: Hugging Face.
        split: ``test``, the questions of an evaluation, or ``train``.
        limit: the most rows to read; None: all.

    Raises:
        ValueError: the data is missing (says how to obtain it), has no such split, or a row lacks question or answer.
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
        told, _, _ = str(error).partition(". Name one")  # the rest names a key that an evaluation does not have
        raise ValueError(f"{told}. Rename one of them") from None
    if benchmark.boxed and answer_field is not None:
        question = replace(question, answer=_final_answer(question.answer))
    said = benchmark.own and "/" in question.source
    return question if said else replace(question, source=f"{benchmark.name}/{benchmark.scorer}")


def _final_answer(solution: str) -> str:
    """Find the final answer in a worked solution; empty if it gives none, as one of MATH's does."""
    found = last_box(solution)
    if found is None and (bare := _BARE_BOX.findall(solution)):
        found = bare[-1]
    return found or ""

"""``rapo/questions``: questions of a data set, with a file of recorded trajectories as expert.

env_config.dataset -> dataset_files -> dataset_rows -> Question;   env_config.traces -> traces.recorded -> ExpertTrajectory
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from rapo_rllib.envs.benchmarks import benchmark_questions, split_name
from rapo_rllib.envs.calculator_traces import annotated_trajectories
from rapo_rllib.envs.dataset_files import is_file_name, read_once, read_rows
from rapo_rllib.envs.dataset_rows import question_from_row
from rapo_rllib.envs.options import DatasetOptions, ToolEnvOptions, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.rewards import is_own
from rapo_rllib.settings.knobs import knob
from rapo_rllib.tools import shared_tools
from rapo_rllib.traces.recorded import read_trace_file
from rapo_rllib.types import ExpertTrajectory, Question
from rapo_rllib.validation import require

logger = logging.getLogger(__name__)

ANNOTATIONS = "annotations"
Columns = tuple[str | None, str | None, bool]  # question, answer, and whether a row must have one


@dataclass(frozen=True)
class QuestionsOptions(DatasetOptions, ToolEnvOptions):
    """The ``env_config`` keys of ``rapo/questions``, in addition to those of every tool environment."""

    scorer: Any = knob("auto", "by the question's source, or any that the other environments know")
    question_field: str | None = knob(None, "column with a text or a list of turns (`a.b`: nested); None: known names")
    answer_field: str | None = knob(None, "column of the accepted answer; None: known names")
    skip_bad_rows: bool = knob(False, "leave out rows without question or answer, with a warning, instead of refusing the file")
    traces: str | None = knob(None, ".jsonl[.gz] file of recorded trajectories, or 'annotations': GSM8K's own, in its answers")

    def __post_init__(self) -> None:
        super().__post_init__()
        value = self.test_dataset
        names = value if isinstance(value, tuple) else () if value is None else (value,)
        require(
            all(names) and value != (), "test_dataset", value, "must be a text or a list of texts, for example [gsm8k, math500]"
        )
        called = [_short_name(name) for name in names]
        twice = next((name for name in called if called.count(name) > 1), None)
        rule = f"two are called {twice!r}: rename one, or name a copy of a known benchmark as NAME=PATH"
        require(twice is None, "test_dataset", value, rule)

    def check_rows(self, name: str, questions: Sequence[Question]) -> None:
        """Refuse rows of the data set ``name`` that list a tool the job lacks, or hold turns that its format cannot show."""
        for question in questions if self.protocol.format == "tags" else ():
            if any(turn["role"] == "tool" or "tool_calls" in turn for turn in question.messages):
                raise ValueError(
                    f"{name}, row {question.id.rpartition('-')[2]}: earlier turns hold tool calls or results, which the chat "
                    "template writes: set protocol.format to 'native', or leave such turns out"
                )
        asked = [question for question in questions if question.tools]
        known = [tool.tag for entry in self.tools for tool in shared_tools(entry)] if asked else []
        for question in asked:
            unknown = [tool for tool in question.tools or () if tool not in known]
            if unknown:
                raise ValueError(
                    f"{name}, row {question.id.rpartition('-')[2]}: tools: {unknown[0]!r} is none of the job's tools "
                    f"({', '.join(known) or 'it has none'}): name it in env_config.tools"
                )


class Questions(ToolEnv):
    """Environment over any data set of questions with checkable answers."""

    options_class: ClassVar[type[QuestionsOptions]] = QuestionsOptions

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> Sequence[Question]:
        """Load the questions of ``split``. Raises ``ValueError``, naming file, row and field, if a row cannot be used."""
        options = read_options(cls.options_class, env_config)
        named = options.test_dataset if split == "test" else None
        if isinstance(named, tuple):
            return _in_turn({_short_name(name): _questions_of(options, name, split) for name in named})
        return _questions_of(options, named or options.dataset, split)

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """Read the usable trajectories of ``env_config.traces``."""
        options = read_options(cls.options_class, env_config)
        if options.traces is None:
            require(False, "traces", None, "name a .jsonl[.gz] file of recorded trajectories to build a buffer from")
        if options.traces == ANNOTATIONS:
            return _annotated(options)
        return read_trace_file(str(options.traces))


def _questions_of(options: QuestionsOptions, name: str, split: str) -> tuple[Question, ...]:
    """Load the questions of the data set ``name`` for ``split``."""
    key, upstream, limit = options.of_split(split)
    if (named := split_name(name)) is not None:
        return benchmark_questions(*named, split, limit)
    columns = (options.question_field, options.answer_field, not is_own(options.scorer))
    found = _load(name, key, upstream, options.dataset_config, limit, columns, options.skip_bad_rows)
    options.check_rows(name, found)
    return found


def _short_name(name: str) -> str:
    """Return a data set's name in metrics. Example: ``math500`` for ``math500=./test.jsonl`` and for ``./math500.jsonl``."""
    named = split_name(name)
    return (Path(name).name.split(".")[0] or name) if named is None else named[0].name


def _in_turn(parts: Mapping[str, Sequence[Question]]) -> tuple[Question, ...]:
    """Interleave the data sets: the first question of each, the second of each, ...; so the first ``N`` are spread evenly."""
    for name, part in parts.items():
        require(bool(part), "test_dataset", name, "holds no questions")
    marked = [[replace(question, benchmark=name) for question in part] for name, part in parts.items()]
    return tuple(question for turn in zip_longest(*marked) for question in turn if question is not None)


def _annotated(options: QuestionsOptions) -> Iterator[ExpertTrajectory]:
    """Read trajectories from the annotated training answers, of which ``Questions.questions`` keeps only the final number."""
    name, config, fields_named = options.dataset, options.dataset_config, (options.question_field, options.answer_field)
    if (named := split_name(name)) is not None:
        benchmark, path = named
        name, config = path or benchmark.hub_id, benchmark.config
    rows = read_rows(name, "env_config.dataset", "train", config, options.limit_train)
    pairs = _asked_by(rows, name, "annotated", (*fields_named, True), options.skip_bad_rows)
    return annotated_trajectories(pairs, options.answer_field or "answer")


@read_once
def _load(
    name: str, key: str, split: str, config: str | None, limit: int | None, columns: Columns, skip_bad_rows: bool
) -> tuple[Question, ...]:
    """Load questions of a file, folder or Hugging Face id; ``columns``: the last three arguments of ``question_from_row``."""
    rows = read_rows(name, key, split, config, limit)
    stem = Path(name).name.split(".")[0]
    label = f"{stem}-{split}" if not is_file_name(name) else stem
    return tuple(question for question, _ in _asked_by(rows, name, label, columns, skip_bad_rows))


def _asked_by(
    rows: Iterable[dict[str, Any]], name: str, label: str, columns: Columns, skip_bad_rows: bool
) -> Iterator[tuple[Question, dict[str, Any]]]:
    """Read the question of each row; a row without one is refused, or left out with a warning."""
    for number, row in enumerate(rows, start=1):
        try:
            question = question_from_row(row, f"{name}, row {number}", f"{label}-{number}", *columns)
        except ValueError as error:
            if not skip_bad_rows:
                raise ValueError(f"{error}; or leave such rows out by env_config.skip_bad_rows: true") from None
            logger.warning("left out: %s", error)
        else:
            yield question, row

"""One row of a data set -> ``Question``. Known as they are: GSM8K, MATH, the RAPO paper's training set, and question/answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.envs.chat_columns import CHAT_FIELDS, TOOLS_FIELD, Turns, read_tools, read_turns
from rapo_rllib.types import Question

_QUESTION_FIELDS = ("extra_info.question", "problem", "question")
_ANSWER_FIELDS = ("reward_model.ground_truth", "answer", "answers", "golden_answers", "reward_model.ground_truth.target")
_GSM8K_MARK = "####"


def question_from_row(
    row: Mapping[str, Any], where: str, id: str, question_field: str | None = None, answer_field: str | None = None
) -> Question:
    """Read one row.

    Args:
        row: fields of the row.
        where: file and row number, for messages.
        id: of the question.
        question_field: dotted name of the field that holds the question, or a list of turns that ends with it; None: the known
            formats are tried.
        answer_field: the same for the answer: a text, a number, or a list of accepted ones.

    Raises:
        ValueError: no question or no answer; names file, row and field.
    """
    text, turns = _asked(row, where, question_field)
    names = (answer_field,) if answer_field else _ANSWER_FIELDS
    answers = next(filter(None, (accepted(field_value(row, name)) for name in names)), None)  # of the first that holds one
    if answers is None:
        raise ValueError(_missing("answer", where, row, answer_field, _ANSWER_FIELDS))
    aliases = tuple(dict.fromkeys([*answers[1:], *accepted(row.get("aliases"))]))
    ability = row.get("ability")
    source = id.rpartition("-")[0] + (f"/{ability}" if isinstance(ability, str) else "")
    tools = read_tools(row.get(TOOLS_FIELD), where)
    return Question(id=id, text=text, answer=answers[0], aliases=aliases, source=source, turns=turns, tools=tools)


def question_text(row: Mapping[str, Any], where: str, question_field: str | None = None) -> str:
    """The question of one row, whether it has an answer or not. Arguments and errors as of :func:`question_from_row`."""
    return _asked(row, where, question_field)[0]


def _asked(row: Mapping[str, Any], where: str, question_field: str | None) -> tuple[str, Turns]:
    """The question of a row, and the turns that stand before it."""
    names = (question_field,) if question_field else (*_QUESTION_FIELDS, *CHAT_FIELDS)
    there = [(name, value) for name in names if (value := field_value(row, name)) is not None]
    may_be_turns = names if question_field else CHAT_FIELDS
    holding = (each for each in there if _holds_question(each[1], each[0] in may_be_turns))
    name, value = next(holding, there[0] if there else ("", None))
    if isinstance(value, list) and name in may_be_turns:
        return read_turns(value, where, name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(_missing("question", where, row, question_field, _QUESTION_FIELDS))
    return value.strip(), ()


def _holds_question(value: Any, may_be_turns: bool) -> bool:
    return bool(value.strip()) if isinstance(value, str) else may_be_turns and isinstance(value, list) and bool(value)


def field_value(row: Any, dotted: str) -> Any:
    """The value under a dotted name, or None. Example: ``reward_model.ground_truth``. A name with a dot in it goes first."""
    if isinstance(row, Mapping) and dotted in row:
        return row[dotted]
    head, _, rest = dotted.partition(".")
    if rest and isinstance(row, Mapping) and head in row:
        return field_value(row[head], rest)
    return None


def accepted(value: Any) -> list[str]:
    """List accepted answers that are not empty; of a GSM8K solution what follows its mark."""
    values = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for one in values:
        if isinstance(one, bool) or not isinstance(one, (str, int, float)) or one != one:  # NaN: an empty cell
            continue
        text = str(one).strip()
        if _GSM8K_MARK in text:
            text = text.rpartition(_GSM8K_MARK)[2].strip().replace(",", "")
        if text:
            found.append(text)
    return found


def _missing(what: str, where: str, row: Mapping[str, Any], named: str | None, tried: tuple[str, ...]) -> str:
    fields = ", ".join(map(str, row)) or "none"
    if named:
        return f"{where}: field {named!r} (env_config.{what}_field) holds no {what}; fields of this row: {fields}"
    return f"{where}: no {what} in {', '.join(tried)}; fields of this row: {fields}. Name one in env_config.{what}_field"

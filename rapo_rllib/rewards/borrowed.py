"""Reward functions that were written for TRL or verl, called as they are; the names of their parameters tell which.

TRL: ``f(prompts, completions, **columns)``, lists of one item
verl: ``compute_score(data_source, solution_str, ground_truth, extra_info)``
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from rapo_rllib.rewards.score import Episode
from rapo_rllib.types import Question
from rapo_rllib.validation import refuse_unknown_keys

_TRLS_OWN = ("prompt", "completion", "completion_ids")  # columns that TRL does not hand on


def borrowed(function: Callable[..., Any], path: str, options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Wrap a function of TRL's or verl's form in one of answer, question and episode; None: it has neither form.

    Args:
        function: the reward function.
        path: how the job names it, for messages.
        options: further keyword arguments of each call.
    """
    if not callable(function):
        return None
    parameters = inspect.signature(function).parameters
    form, named = _form(parameters), _named(parameters)
    if form is None:
        return None
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    loop = _loop()
    if not takes_all:
        refuse_unknown_keys(options, named, "env_config.scorer.options.")

    def called(answer: str | None, question: Question, episode: Episode) -> Any:
        arguments = {**form(question, episode), **options}
        _check_columns(named, arguments, path, question)
        found = function(**{name: value for name, value in arguments.items() if takes_all or name in named})
        if inspect.iscoroutine(found):
            found = asyncio.run_coroutine_threadsafe(found, loop).result()
        return _of_trl(found, path) if form is _for_trl else _of_verl(found, path)

    return called


def check_borrowed(function: Callable[..., Any], path: str, options: Mapping[str, Any], questions: Sequence[Question]) -> None:
    """Refuse with ``ValueError`` a function of TRL's or verl's form that needs a column which a question lacks."""
    parameters = inspect.signature(function).parameters
    form, named = _form(parameters), _named(parameters)
    if form is not None:
        for question in questions:
            _check_columns(named, {**form(question, Episode(())), **options}, path, question)


def _form(parameters: Mapping[str, inspect.Parameter]) -> Callable[[Question, Episode], dict[str, Any]] | None:
    return next((make for name, make in _FORMS.items() if name in parameters), None)


def _named(parameters: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    return {name: one for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}


def _check_columns(named: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any], path: str, question: Question) -> None:
    missing = [name for name in named.keys() - arguments.keys() if named[name].default is inspect.Parameter.empty]
    if missing:
        has = ", ".join(question.columns) or "none"
        raise ValueError(
            f"env_config.scorer: {path} needs a column {min(missing)!r}; those of question {question.id} are: {has}; correct "
            "the parameter, give it a default, or add the column to the data set"
        )


def _for_trl(question: Question, episode: Episode) -> dict[str, Any]:
    """Build the arguments of TRL's form; the completion is a list of messages if the prompt is one."""
    prompt = question.columns.get("prompt", [*question.messages, {"role": "user", "content": question.text}])
    completion: Any = episode.text if isinstance(prompt, str) else [{"role": "assistant", "content": episode.text}]
    columns = {name: [value] for name, value in question.columns.items() if name not in _TRLS_OWN}
    return {**columns, "prompts": [prompt], "completions": [completion]}


def _of_trl(found: Any, path: str) -> float:
    values: Any = () if isinstance(found, str | Mapping) else found
    try:
        (value,) = values
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} returned {found!r} for one completion: must return a list of one number") from error
    return 0.0 if value is None else _number(value, found, path)  # None: the function does not apply; it adds nothing in TRL


def _for_verl(question: Question, episode: Episode) -> dict[str, Any]:
    columns, truth = question.columns, question.columns.get("reward_model")
    return {
        "data_source": columns.get("data_source", question.source),
        "solution_str": episode.text,
        "ground_truth": truth.get("ground_truth", question.answer) if isinstance(truth, Mapping) else question.answer,
        "extra_info": columns.get("extra_info") or {},
    }


def _of_verl(found: Any, path: str) -> float:
    """Read the score of verl's form: a number, or the ``score`` of a mapping, whose other values verl only reports."""
    return _number(found.get("score") if isinstance(found, Mapping) else found, found, path)


def _number(value: Any, found: Any, path: str) -> float:
    number: Any = None if isinstance(value, str) else value  # a text is no number, whatever it says
    try:
        return float(number)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} returned {found!r}: must be a number, or have a 'score'") from error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Start the process's one event loop: a client that a function keeps between calls belongs to the loop of its first use."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="rapo-rewards").start()
    return loop


_FORMS = {"completions": _for_trl, "solution_str": _for_verl}  # by a parameter that no other form has

"""Call reward functions that were written for TRL or verl, as they are; their parameters say whose they are.

TRL: ``f(prompts, completions, **columns)``, lists of one
verl: ``compute_score(data_source, solution_str, ground_truth, extra_info)``
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rapo_rllib.rewards.score import Episode
from rapo_rllib.types import Question
from rapo_rllib.validation import refuse_unknown_keys

_TRLS_OWN = ("prompt", "completion", "completion_ids")  # columns that TRL does not hand on


def borrowed(function: Callable[..., Any], path: str, options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return a function of answer, question and episode that calls one of TRL's or verl's form; None: it has neither form.

    Args:
        function: what was written for TRL or verl.
        path: how the job names it, for messages.
        options: further keyword arguments of each call.
    """
    if not callable(function):
        return None
    parameters = inspect.signature(function).parameters
    form = next((make for name, make in _FORMS.items() if name in parameters), None)
    if form is None:
        return None
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    takes_all = len(named) < len(parameters)
    if not takes_all:
        refuse_unknown_keys(options, named, "env_config.scorer.options.")

    def called(answer: str | None, question: Question, episode: Episode) -> Any:
        arguments = {**form(question, episode), **options}
        missing = [name for name in named.keys() - arguments.keys() if named[name].default is inspect.Parameter.empty]
        if missing:
            has = ", ".join(question.columns) or "none"
            raise ValueError(f"{path} needs a column {min(missing)!r}; those of question {question.id} are: {has}")
        found = function(**{name: value for name, value in arguments.items() if takes_all or name in named})
        if inspect.iscoroutine(found):
            found = asyncio.run(found)
        return _of_trl(found, path) if form is _for_trl else _of_verl(found, path)

    return called


def _for_trl(question: Question, episode: Episode) -> dict[str, Any]:
    """Its arguments; a completion is a list of messages where the prompt is one."""
    prompt = question.columns.get("prompt", [*question.messages, {"role": "user", "content": question.text}])
    completion: Any = episode.text if isinstance(prompt, str) else [{"role": "assistant", "content": episode.text}]
    columns = {name: [value] for name, value in question.columns.items() if name not in _TRLS_OWN}
    return {"prompts": [prompt], "completions": [completion], **columns}


def _of_trl(found: Any, path: str) -> Any:
    values = list(found) if hasattr(found, "__iter__") and not isinstance(found, str | Mapping) else []
    if len(values) != 1:
        raise ValueError(f"{path} returned {found!r} for one completion: must return a list of one number")
    return 0.0 if values[0] is None else float(values[0])  # None: TRL counts what does not apply as nothing


def _for_verl(question: Question, episode: Episode) -> dict[str, Any]:
    columns, truth = question.columns, question.columns.get("reward_model")
    return {
        "data_source": columns.get("data_source", question.source),
        "solution_str": episode.text,
        "ground_truth": truth.get("ground_truth", question.answer) if isinstance(truth, Mapping) else question.answer,
        "extra_info": columns.get("extra_info") or {},
    }


def _of_verl(found: Any, path: str) -> Any:
    """Its number; of a mapping the ``score``, the rest of which verl reports alone."""
    if not isinstance(found, Mapping):
        return float(found)
    if "score" not in found:
        raise ValueError(f"{path} returned {dict(found)!r}: must be a number, or have a 'score'")
    return float(found["score"])


_FORMS = {"completions": _for_trl, "solution_str": _for_verl}  # by a parameter that no other form has

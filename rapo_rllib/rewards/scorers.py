"""``env_config.scorer`` -> scorer: a name, an import path, ``{name: ..., options: {...}}``, or a list of these with weights.

A user's own reward function, given by import path or as a Python object:

    def my_reward(answer: str | None, question: Question, episode: Episode) -> float | dict[str, float] | Score

or one for TRL or verl (``borrowed.py``). Of a class, one object is made with the options, and the object is called. An
exception of a reward function ends the trajectory with an error.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from numbers import Real
from typing import Any

from rapo_rllib.rewards.borrowed import borrowed, check_borrowed
from rapo_rllib.rewards.judge import JudgeOptions, llm_judge
from rapo_rllib.rewards.maths import math_score
from rapo_rllib.rewards.qa import NORMALIZATIONS, qa_em_score, qa_score
from rapo_rllib.rewards.score import WRONG, Episode, Score, Scorer, asks_words, of_answer
from rapo_rllib.rewards.terms import TERMS
from rapo_rllib.settings.knobs import build
from rapo_rllib.types import Question
from rapo_rllib.validation import refuse_unknown_keys, require

_TAKEN = frozenset(TERMS) - {"correct"}
_WHERE = "env_config.scorer.options."


def _words(score: Callable[..., Score], normalization: str = "signs") -> Scorer:
    known = ", ".join(NORMALIZATIONS)
    require(normalization in NORMALIZATIONS, "scorer.options.normalization", normalization, f"must be one of {known}")
    return of_answer(partial(score, normalization=normalization))


def _auto(normalization: str = "signs") -> Scorer:
    """Make a scorer that applies ``qa`` to a question whose source ends in ``/qa``, else ``math``."""
    maths, qa = of_answer(math_score), _words(qa_score, normalization)

    def scorer(answer: str | None, question: Question, episode: Episode) -> Score:
        return (qa if asks_words(question) else maths)(answer, question, episode)

    return scorer


def _judge(**options: Any) -> Scorer:
    found = build(JudgeOptions, options)
    known = ("error", "wrong", *_NO_SERVICE)
    require(found.on_failure in known, "scorer.options.on_failure", found.on_failure, f"must be one of {', '.join(known)}")
    fallback = {"error": None, "wrong": of_answer(lambda *_: WRONG)}
    return llm_judge(found, fallback[found.on_failure] if found.on_failure in fallback else SCORERS[found.on_failure]())


# name -> function that makes the scorer from its options
SCORERS: dict[str, Callable[..., Scorer]] = {
    "math": partial(of_answer, math_score),
    "qa": partial(_words, qa_score),
    "qa_em": partial(_words, qa_em_score),
    "auto": _auto,
    "judge": _judge,
}
_NO_SERVICE = tuple(name for name in SCORERS if name != "judge")

_shared: weakref.WeakValueDictionary[str, Scorer] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def check_scorer(entry: Any) -> tuple[Any, dict[str, Any]]:
    """Check an entry, and split it into name and options; the name may be a function, or a list, which has no options.

    Raises:
        ValueError: the entry has another shape, or names no scorer.
    """
    if isinstance(entry, list | tuple) and entry:
        for part in entry:
            check_scorer({key: value for key, value in part.items() if key != "weight"} if isinstance(part, Mapping) else part)
        return entry, {}
    if isinstance(entry, str) or callable(entry):
        entry = {"name": entry}
    shape = isinstance(entry, Mapping) and (isinstance(entry.get("name"), str) or callable(entry.get("name")))
    require(shape, "scorer", entry, "must be a name, or {name: judge, options: {model: ...}}, or a list of these with weights")
    refuse_unknown_keys(entry, ("name", "options"), "env_config.scorer.")
    name, options = entry["name"], entry.get("options") or {}
    require(isinstance(options, Mapping), "scorer.options", options, "must be a mapping")
    if isinstance(name, str) and name not in SCORERS and ":" not in name:
        hint = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(name, SCORERS, n=1))
        require(False, "scorer", name, f"must be one of {', '.join(SCORERS)}, or package.module:function{hint}")
    return name, dict(options)


def is_own(entry: Any) -> bool:
    """Return whether an entry has only the user's own functions, which may judge questions without an accepted answer."""
    name, _ = check_scorer(entry)
    if isinstance(name, list | tuple):
        return all(is_own(part["name"] if isinstance(part, Mapping) else part) for part in name)
    return callable(name) or name not in SCORERS


def check_columns(entry: Any, questions: Sequence[Question]) -> None:
    """Refuse with ``ValueError`` a reward function that names a column which the rows of the questions lack."""
    if isinstance(entry, list | tuple):
        for part in entry:
            check_columns(part, questions)
        return
    name, options = (entry["name"], entry.get("options") or {}) if isinstance(entry, Mapping) else (entry, {})
    if callable(name) or ":" in name:
        target, path = (_imported(name) if isinstance(name, str) else name), _path(name)
        if inspect.isclass(target):  # the options are those of its constructor
            target, options = partial(target.__call__, None), {}
        check_borrowed(target, path, options, questions)


def shared_scorer(entry: Any) -> Scorer:
    """Return the scorer that an entry of ``env_config`` describes; equal entries share one scorer as long as it is in use.

    Raises:
        ValueError: naming what is wrong with the entry.
    """
    name, options = check_scorer(entry)
    key = json.dumps([name, options], sort_keys=True, default=lambda value: f"{value!r} at {id(value)}")
    if isinstance(name, list | tuple):
        return _weighted(name)
    with _shared_lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = _made(name, options)
        return found


def _weighted(entries: Sequence[Any]) -> Scorer:
    """Make the weighted sum of several scorers, each a named term; the first scorer says what counts as correct."""
    parts: dict[str, tuple[float, Scorer]] = {}
    for entry in entries:
        entry = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        weight, (name, _) = entry.pop("weight", 1.0), check_scorer(entry)
        term = name.rpartition(":")[2] if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
        require(_is_finite(weight), f"scorer: weight of {term}", weight, "must be a finite number")
        require(term not in parts, "scorer", term, "is there twice: give one of the functions another name")
        require(term not in _TAKEN, "scorer", term, "is a term that env_config.reward adds: give the function another name")
        parts[term] = float(weight), shared_scorer(entry)

    def scorer(answer: str | None, question: Question, episode: Episode) -> Score:
        found = {term: score(answer, question, episode) for term, (_, score) in parts.items()}
        terms = {term: parts[term][0] * score.value for term, score in found.items()}
        failure = next(filter(None, (score.failure for score in found.values())), "")
        steps_of = ([parts[term][0] * worth for worth in score.steps] for term, score in found.items())
        steps = [math.fsum(each) for each in zip_longest(*steps_of, fillvalue=0.0)]
        first = next(iter(found.values()))
        return as_score(Score(0.0, first.correct, terms, failure, steps), "env_config.scorer")

    return scorer


def _made(name: Any, options: dict[str, Any]) -> Scorer:
    if callable(name) or name not in SCORERS:
        return _own(name, options)
    make = SCORERS[name]
    if make is not _judge:  # the judge checks its options itself
        refuse_unknown_keys(options, inspect.signature(make).parameters, _WHERE)
    return make(**options)


def _own(name: Any, options: Mapping[str, Any]) -> Scorer:
    """Make a scorer of a function, a class, or the path of one (``package.module:name``); ``options`` are keyword arguments.

    Raises:
        ValueError: the function can be called neither with answer, question and episode, nor as TRL or verl do.
    """
    target, arguments = (_imported(name) if isinstance(name, str) else name), dict(options)
    path = _path(name)
    if inspect.isclass(target):
        _check_call(path, target, (), options)
        target, arguments = target(**options), {}
    if theirs := borrowed(target, path, arguments):
        target, arguments = theirs, {}
    _check_call(path, target, ("answer", "question", "episode"), arguments)
    return lambda answer, question, episode: as_score(target(answer, question, episode, **arguments), path)


def _check_call(path: str, function: Any, positional: tuple[str, ...], options: Mapping[str, Any]) -> None:
    if not callable(function):
        raise ValueError(f"env_config.scorer = {path!r}: a {type(function).__name__} cannot be called")
    try:
        inspect.signature(function).bind(*positional, **options)
    except TypeError as error:
        wanted = ", ".join([*positional, *(f"{key}=..." for key in options)])
        raise ValueError(f"env_config.scorer = {path!r} cannot be called with ({wanted}): {error}") from error


def as_score(found: Any, path: str) -> Score:
    """Make a ``Score`` of a number, named terms or a ``Score``; a number, or the term ``correct``, of at least 1 is correct.

    Raises:
        ValueError: a value is no finite number, or a term is one that the environment adds by itself; the message names it.
    """
    score = found if isinstance(found, Score) else None
    terms = found if isinstance(found, Mapping) else score.terms if score else {}
    values = {} if isinstance(found, Mapping) else {"value": score.value if score else found}
    for name, value in {**values, **terms}.items():
        if not isinstance(name, str) or not _is_finite(value):
            raise ValueError(f"{path} returned {name!r}: {value!r}, which is no finite number: return a number, or named terms")
    if taken := _TAKEN & terms.keys():
        raise ValueError(f"{path} returned a term {min(taken)!r}, which env_config.reward adds: give it another name")
    if score and not all(map(_is_finite, score.steps)):
        raise ValueError(f"{path} returned steps = {tuple(score.steps)!r}: must be a finite number for each step")
    numbers = {name: float(value) for name, value in terms.items()}
    total = math.fsum((numbers or values).values())
    if score:
        return replace(score, value=total, terms=numbers)
    return Score(total, numbers.get("correct", total) >= 1, numbers)


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _path(name: Any) -> str:
    return name if isinstance(name, str) else getattr(name, "__name__", repr(name))


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a user's module raises while it is loaded
        raise ValueError(f"env_config.scorer = {path!r}: cannot import it: {error!r}") from error

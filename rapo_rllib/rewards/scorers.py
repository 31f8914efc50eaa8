"""``env_config.scorer`` -> scorer: a name, an import path, or ``{name: ..., options: {...}}``."""

from __future__ import annotations

import difflib
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from rapo_rllib.rewards.judge import JudgeOptions, LLMJudge
from rapo_rllib.rewards.math_worker import LAST_RESORT_S
from rapo_rllib.rewards.maths import math_score
from rapo_rllib.rewards.own import OwnReward
from rapo_rllib.rewards.qa import NORMALIZATIONS, qa_em_score, qa_score
from rapo_rllib.rewards.score import WRONG, Episode, Score, Scorer, asks_words, of_answer
from rapo_rllib.rewards.symbolic import TIMEOUT_S
from rapo_rllib.types import Question
from rapo_rllib.validation import is_number, refuse_unknown_keys, require

_WHERE = "env_config.scorer.options."


def _maths(timeout_s: float = TIMEOUT_S) -> Scorer:
    rule = f"must be a number of seconds, at most {LAST_RESORT_S}"
    require(is_number(timeout_s) and 0 < timeout_s <= LAST_RESORT_S, "scorer.options.timeout_s", timeout_s, rule)
    return of_answer(partial(math_score, timeout_s=timeout_s))


def _words(score: Callable[..., Score], normalization: str = "signs") -> Scorer:
    known = ", ".join(NORMALIZATIONS)
    require(normalization in NORMALIZATIONS, "scorer.options.normalization", normalization, f"must be one of {known}")
    return of_answer(partial(score, normalization=normalization))


def _auto(timeout_s: float = TIMEOUT_S, normalization: str = "signs") -> Scorer:
    """``qa`` for a question whose source ends in ``/qa``, else ``math``."""
    maths, qa = _maths(timeout_s), _words(qa_score, normalization)

    def scorer(answer: str | None, question: Question, episode: Episode) -> Score:
        return (qa if asks_words(question) else maths)(answer, question, episode)

    return scorer


def _judge(**options: Any) -> Scorer:
    found = JudgeOptions(**options)
    known = ("error", "wrong", *_NO_SERVICE)
    require(found.on_failure in known, "scorer.options.on_failure", found.on_failure, f"must be one of {', '.join(known)}")
    if found.on_failure == "error":
        return LLMJudge(found)
    fallback = of_answer(lambda *_: WRONG) if found.on_failure == "wrong" else SCORERS[found.on_failure][0]()
    return LLMJudge(found, fallback)


# name -> what makes the scorer, and the options it takes
SCORERS: dict[str, tuple[Callable[..., Scorer], tuple[str, ...]]] = {
    "math": (_maths, ("timeout_s",)),
    "qa": (partial(_words, qa_score), ("normalization",)),
    "qa_em": (partial(_words, qa_em_score), ("normalization",)),
    "auto": (_auto, ("timeout_s", "normalization")),
    "judge": (_judge, tuple(f.name for f in fields(JudgeOptions))),
}
_NO_SERVICE = tuple(name for name in SCORERS if name != "judge")

_shared: weakref.WeakValueDictionary[str, Scorer] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def check_scorer(entry: Any) -> tuple[str, dict[str, Any]]:
    """Name and options of an entry.

    Raises:
        ValueError: it has another shape, or names no scorer.
    """
    if isinstance(entry, str):
        entry = {"name": entry}
    shape = isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
    require(shape, "scorer", entry, "must be a name, or {name: judge, options: {model: ...}}")
    refuse_unknown_keys(entry, ("name", "options"), "env_config.scorer.")
    name, options = entry["name"], entry.get("options") or {}
    require(isinstance(options, Mapping), "scorer.options", options, "must be a mapping")
    if name not in SCORERS and ":" not in name:
        near = difflib.get_close_matches(name, SCORERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        require(False, "scorer", name, f"must be one of {', '.join(SCORERS)}, or package.module:function{hint}")
    return name, dict(options)


def shared_scorer(entry: Any) -> Scorer:
    """The scorer that an entry of ``env_config`` describes; equal entries give the same one for as long as someone uses it.

    Raises:
        ValueError: naming what is wrong with the entry.
    """
    name, options = check_scorer(entry)
    key = json.dumps([name, options], sort_keys=True, default=repr)
    with _shared_lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = _made(name, options)
        return found


def _made(name: str, options: dict[str, Any]) -> Scorer:
    if name not in SCORERS:
        return OwnReward(name, options)
    make, known = SCORERS[name]
    refuse_unknown_keys(options, known, _WHERE)
    return make(**options)

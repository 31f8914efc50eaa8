"""``rapo/skyrl_gym``: environments of the package skyrl-gym, over data sets in SkyRL's form.

row {prompt, env_class, reward_spec, extra_info, ...} -> Question, and ``extras`` of the environment made for its episode
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from rapo_rllib.envs.base import check_split
from rapo_rllib.envs.chat_columns import Turns, read_turns
from rapo_rllib.envs.dataset_files import Row, is_file_name, read_rows
from rapo_rllib.envs.dataset_rows import field_value
from rapo_rllib.envs.external.base import ExternalEnv, ExternalOptions, Played
from rapo_rllib.envs.options import DatasetOptions, read_options
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import Question
from rapo_rllib.validation import require

_PROMPT, _ENV_CLASS = "prompt", "env_class"
_ANSWERS = ("reward_spec.ground_truth", "reward_model.ground_truth")


@dataclass(frozen=True)
class SkyRLGymOptions(DatasetOptions, ExternalOptions):
    """Keys of ``env_config`` of ``rapo/skyrl_gym``."""

    id: str | None = knob(
        None, "of an environment of skyrl-gym, for example `gsm8k_multi_turn`; None: as `env_class` of each row"
    )
    extras: dict = knob(dict, "for the environments of all rows, where a row says nothing else, for example {max_turns: 3}")
    settings: dict = knob(dict, "the environment's own settings, for example {search_url: http://127.0.0.1:8000/retrieve}")
    stop_tags: tuple[str, ...] = knob(
        (), "tags whose closing form ends a generated step, for example [search]", rule="a list of tags"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _package()
        one = not isinstance(self.test_dataset, tuple)
        require(one, "test_dataset", self.test_dataset, "must be a text: rows of this environment have one")
        if self.id is not None:
            _check_id(self.id, f"env_config.id = {self.id!r}")


class SkyRLGym(ExternalEnv):
    """Environments of skyrl-gym, one made for each episode from the row of its question."""

    options_class: ClassVar[type[ExternalOptions]] = SkyRLGymOptions

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        self._env: Any = None  # of the present episode

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> Sequence[Question]:
        """Those of ``split``.

        Raises:
            ValueError: a row cannot be read, or its environment cannot be made: names file, row and field.
        """
        check_split(split)
        options = read_options(SkyRLGymOptions, env_config)
        assert isinstance(options, SkyRLGymOptions)
        return tuple(asked.question for asked in _rows_of(options, split))

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        assert isinstance(self.options, SkyRLGymOptions)
        return () if self._native else (*super().tool_tags, *self.options.stop_tags)

    def begin(self, question: Question) -> str:
        """Make the environment of the question's row; it may change the prompt's last turn, and no other."""
        self._close()
        options = self.options
        assert isinstance(options, SkyRLGymOptions)
        asked = _asked(options, question)
        self._env = made(options, asked)
        prompt, _ = self._env.init([dict(turn) for turn in asked.prompt])
        text, turns = read_turns(prompt, asked.where, "the prompt that its environment makes")
        if turns != question.turns:
            raise ValueError(f"{asked.where}: its environment changes the turns before the question, which is not supported")
        return text

    def play(self, action: str) -> Played:
        """One step; turns of the environment become one observation."""
        told = self._env.step(action)
        metadata = told.get("metadata") or {}
        text = "\n".join(str(message["content"]).strip("\n") for message in told["observations"])
        info = {"tool": str(metadata["tool_name"]), "tool_error": None} if metadata.get("tool_name") else {}
        return Played(text, float(told["reward"]), terminated=bool(told["done"]), info=info)

    def end_sessions(self) -> None:
        """The episode is over, or given up."""
        self._close()

    def close(self) -> None:
        """Let go of everything."""
        self._close()

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


@dataclass(frozen=True)
class AskedRow:
    """A row, and the question that it asks."""

    question: Question
    prompt: tuple[dict[str, str], ...]
    row: Row
    where: str  # file and row, for messages


def made(options: SkyRLGymOptions, asked: AskedRow) -> Any:
    """The environment of a row.

    Raises:
        ValueError: it cannot be made, and why.
    """
    name = options.id or asked.row.get(_ENV_CLASS)
    require(name is not None, "id", None, f"{asked.where} has no {_ENV_CLASS!r}: name an environment of skyrl-gym")
    _check_id(str(name), f"{asked.where}: {_ENV_CLASS} = {name!r}")
    from omegaconf import OmegaConf

    extras = {**options.extras, **{key: value for key, value in asked.row.items() if key != _PROMPT and value is not None}}
    try:
        return _package().make(str(name), env_config=OmegaConf.create(dict(options.settings)), extras=extras)
    except Exception as error:  # a row lacks what it needs, which each environment finds in its own way
        raise ValueError(f"{asked.where}: skyrl-gym cannot make {name!r} of it: {type(error).__name__}: {error}") from error


def _asked(options: SkyRLGymOptions, question: Question) -> AskedRow:
    for split in ("train", "test"):
        if split == "test" and options.test_dataset is None and is_file_name(options.dataset):
            continue
        found = _by_id(options, split).get(question.id)
        if found is not None:
            return found
    raise ValueError(f"question {question.id!r} is none of env_config.dataset, whose rows say how an answer is judged")


def _rows_of(options: SkyRLGymOptions, split: str) -> tuple[AskedRow, ...]:
    options.check_has(split)
    named = options.dataset if split == "train" or options.test_dataset is None else str(options.test_dataset)
    key = "dataset" if named == options.dataset else "test_dataset"
    upstream, limit = options.of_split(split)
    path = Path(named).expanduser()
    changed_at = path.stat().st_mtime_ns if path.exists() else 0
    rows = _load(named, f"env_config.{key}", upstream, options.dataset_config, limit, changed_at)
    if rows:
        made(options, rows[0]).close()
    return rows


def _by_id(options: SkyRLGymOptions, split: str) -> Mapping[str, AskedRow]:
    return {asked.question.id: asked for asked in _rows_of(options, split)}


@lru_cache(maxsize=8)
def _load(name: str, key: str, split: str, config: str | None, limit: int | None, changed_at: int) -> tuple[AskedRow, ...]:
    """Read once what several parts of a process ask for; ``changed_at`` tells another version of a file from this one."""
    stem = Path(name).name.split(".")[0]
    label = stem if is_file_name(name) else f"{stem}-{split}"
    rows = read_rows(name, key, split, config, limit)
    return tuple(_read(row, f"{name}, row {number}", f"{label}-{number}") for number, row in enumerate(rows, start=1))


def _read(row: Row, where: str, id: str) -> AskedRow:
    prompt = row.get(_PROMPT)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list):
        raise ValueError(f"{where}: {_PROMPT}: must be a text or a list of turns, got {str(prompt)[:80]}")
    text, turns = read_turns(prompt, where, _PROMPT)
    answer = next((value for name in _ANSWERS if isinstance(value := field_value(row, name), str | int | float)), "")
    question = Question(id=id, text=text, answer=str(answer), source="skyrl_gym", turns=turns)
    return AskedRow(question, _as_messages(turns, text), row, where)


def _as_messages(turns: Turns, text: str) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": content} for role, content in (*turns, ("user", text)))


def _check_id(name: str, given: str) -> None:
    known = sorted(_package().registry)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    if name not in known and ":" not in name:  # module:name registers itself when it is made
        raise ValueError(f"{given}: skyrl-gym has no environment of this name; {hint}")


@lru_cache(maxsize=1)
def _package() -> ModuleType:
    """The package. Raises ``ValueError`` if it is not installed."""
    try:
        import skyrl_gym
    except ImportError as error:
        raise ValueError(
            f"env = 'rapo/skyrl_gym' needs the package skyrl-gym: pip install 'rapo_rllib[skyrl-gym]' ({error})"
        ) from error
    package: ModuleType = skyrl_gym
    return package

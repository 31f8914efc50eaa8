"""``rapo/skyrl_gym``: environments of the package skyrl-gym, over data sets in SkyRL's form.

row {prompt, env_class, reward_spec, extra_info, ...} -> Question, and ``extras`` of the environment made for its episode
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from rapo_rllib.envs.dataset_files import Row, is_file_name, read_once, read_rows
from rapo_rllib.envs.dataset_rows import field_value, read_turns
from rapo_rllib.envs.external.base import ExternalEnv, ExternalOptions, Played
from rapo_rllib.envs.options import DatasetOptions, check_known, installed, read_options
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
    _env: Any = None  # of the present episode

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> Sequence[Question]:
        """Those of ``split``.

        Raises:
            ValueError: a row cannot be read, or its environment cannot be made: names file, row and field.
        """
        options = read_options(SkyRLGymOptions, env_config)
        asked = list(_rows_of(options, split).values())
        if asked:
            made(options, asked[0]).close()
        return tuple(row.question for row in asked)

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        return () if self._native else (*super().tool_tags, *self.options.stop_tags)

    def begin(self, question: Question) -> str:
        """Make the environment of the question's row; it may change the prompt's last turn, and no other."""
        self.close()
        asked = _asked(self.options, question)
        self._env = made(self.options, asked)
        prompt, _ = self._env.init([*asked.question.messages, {"role": "user", "content": asked.question.text}])
        text, before = read_turns(prompt, asked.where, "the prompt that its environment makes")
        if before != question.turns:
            raise ValueError(f"{asked.where}: its environment changes the turns before the question, which is not supported")
        return text

    def play(self, action: str) -> Played:
        """One step; turns of the environment become one observation."""
        told = self._env.step(action)
        metadata = told.get("metadata") or {}
        text = "\n".join(str(message["content"]).strip("\n") for message in told["observations"])
        info = {"tool": str(metadata["tool_name"]), "tool_error": None} if metadata.get("tool_name") else {}
        return Played(text, float(told["reward"]), terminated=bool(told["done"]), info=info)

    def close(self) -> None:
        """Let go of the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    end_sessions = close  # the episode is over, or given up


@dataclass(frozen=True)
class AskedRow:
    """A row, and the question that it asks."""

    question: Question
    row: Row
    where: str  # file and row, for messages


def made(options: SkyRLGymOptions, asked: AskedRow) -> Any:
    """The environment of a row.

    Raises:
        ValueError: it cannot be made, and why.
    """
    name = options.id or asked.row.get(_ENV_CLASS)
    require(name is not None, "id", None, f"{asked.where} has no {_ENV_CLASS!r}: name an environment of skyrl-gym")
    if options.id is None:
        _check_id(str(name), f"{asked.where}: {_ENV_CLASS} = {name!r}")
    from omegaconf import OmegaConf

    extras = {**options.extras, **{key: value for key, value in asked.row.items() if key != _PROMPT and value is not None}}
    try:
        return _package().make(str(name), env_config=OmegaConf.create(dict(options.settings)), extras=extras)
    except Exception as error:  # a row lacks what it needs, which each environment finds in its own way
        raise ValueError(f"{asked.where}: skyrl-gym cannot make {name!r} of it: {type(error).__name__}: {error}") from error


def _asked(options: SkyRLGymOptions, question: Question) -> AskedRow:
    one_file = options.test_dataset is None and is_file_name(options.dataset)
    for split in ("train",) if one_file else ("train", "test"):
        found = _rows_of(options, split).get(question.id)
        if found is not None:
            return found
    raise ValueError(f"question {question.id!r} is none of env_config.dataset, whose rows say how an answer is judged")


def _rows_of(options: SkyRLGymOptions, split: str) -> Mapping[str, AskedRow]:
    """Those of ``split``, by id of the question."""
    key, upstream, limit = options.of_split(split)
    named = options.test_dataset if split == "test" else None
    return _load(str(named or options.dataset), key, upstream, options.dataset_config, limit)


@read_once
def _load(name: str, key: str, split: str, config: str | None, limit: int | None) -> Mapping[str, AskedRow]:
    """The rows of a data set, by id of the question."""
    stem = Path(name).name.split(".")[0]
    label = stem if is_file_name(name) else f"{stem}-{split}"
    rows = enumerate(read_rows(name, key, split, config, limit), start=1)
    read = (_read(row, f"{name}, row {number}", f"{label}-{number}") for number, row in rows)
    return {asked.question.id: asked for asked in read}


def _read(row: Row, where: str, id: str) -> AskedRow:
    prompt = row.get(_PROMPT)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list):
        raise ValueError(f"{where}: {_PROMPT}: must be a text or a list of turns, got {str(prompt)[:80]}")
    text, turns = read_turns(prompt, where, _PROMPT)
    answer = next((value for name in _ANSWERS if isinstance(value := field_value(row, name), str | int | float)), "")
    return AskedRow(Question(id=id, text=text, answer=str(answer), source="skyrl_gym", turns=turns), row, where)


def _check_id(name: str, given: str) -> None:
    if ":" not in name:  # module:name registers itself when it is made
        check_known(given, name, list(_package().registry), "skyrl-gym")


def _package() -> ModuleType:
    return installed("skyrl_gym", "rapo/skyrl_gym", "skyrl-gym", "skyrl-gym")

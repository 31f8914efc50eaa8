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
    """The ``env_config`` keys of ``rapo/skyrl_gym``."""

    id: str | None = knob(None, "id of a skyrl-gym environment, for example `gsm8k_multi_turn`; None: `env_class` of each row")
    extras: dict = knob(dict, "extras of rows that set none, for example {max_turns: 3}")
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
            _check_id(self.id, "env_config.id")


class SkyRLGym(ExternalEnv):
    """An environment of skyrl-gym, made anew for each episode from the row of its question."""

    options_class: ClassVar[type[ExternalOptions]] = SkyRLGymOptions
    _env: Any = None  # of the present episode

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> Sequence[Question]:
        """Load the questions of ``split``.

        Raises:
            ValueError: a row cannot be read, or the first row's environment cannot be made; names file, row and field.
        """
        options = read_options(SkyRLGymOptions, env_config)
        key, upstream, limit = options.of_split(split)
        named = options.test_dataset if split == "test" else None
        found = _load(str(named or options.dataset), key, upstream, options.dataset_config, limit)
        if found:
            made(options, found[0]).close()
        return found

    @property
    def tool_tags(self) -> tuple[str, ...]:
        """Tags whose closing form ends a generated step."""
        return () if self._native else (*super().tool_tags, *self.options.stop_tags)

    def begin(self, question: Question) -> str:
        """Make the environment of the question's row. The environment may change only the last turn of the prompt."""
        self.close()
        self._env = made(self.options, question)
        prompt, _ = self._env.init([*question.messages, {"role": "user", "content": question.text}])
        text, before = read_turns(prompt, _where(question), "the prompt that its environment makes")
        if before != question.turns:
            raise ValueError(
                f"{_where(question)}: its environment changes the turns before the question, which is not supported"
            )
        return text

    def play(self, action: str) -> Played:
        """Play one step; all turns that the environment returns become one observation."""
        told = self._env.step(action)
        metadata = told.get("metadata") or {}
        text = "\n".join(str(message["content"]).strip("\n") for message in told["observations"])
        info = {"tool": str(metadata["tool_name"]), "tool_error": None} if metadata.get("tool_name") else {}
        return Played(text, float(told["reward"]), terminated=bool(told["done"]), info=info)

    def close(self) -> None:
        """Close the environment of the present episode."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    end_sessions = close  # the episode is over, or given up


def made(options: SkyRLGymOptions, question: Question) -> Any:
    """Make the environment of a question's row.

    Raises:
        ValueError: the environment cannot be made; says why.
    """
    if not question.columns:
        raise ValueError(f"question {question.id!r} is none of env_config.dataset, whose rows say how an answer is judged")
    name, where = options.id or question.columns.get(_ENV_CLASS), _where(question)
    require(name is not None, "id", None, f"{where} has no {_ENV_CLASS!r}: name an environment of skyrl-gym")
    if options.id is None:
        _check_id(str(name), f"{where}: {_ENV_CLASS}")
    from omegaconf import OmegaConf

    said = {key: value for key, value in question.columns.items() if key != _PROMPT and value is not None}
    settings = OmegaConf.create(dict(options.settings))
    try:
        return _package().make(str(name), env_config=settings, extras={**options.extras, **said})
    except Exception as error:  # a row lacks a field: each environment fails in its own way
        raise ValueError(f"{where}: skyrl-gym cannot make {name!r} of it: {type(error).__name__}: {error}") from error


def _where(question: Question) -> str:
    """Name the data set and the row of a question, for error messages."""
    name, _, number = question.id.rpartition("-")
    return f"{name}, row {number}"


@read_once
def _load(name: str, key: str, split: str, config: str | None, limit: int | None) -> tuple[Question, ...]:
    """Load the questions of a data set, with their rows."""
    stem = Path(name).name.split(".")[0]
    label = stem if is_file_name(name) else f"{stem}-{split}"
    rows = enumerate(read_rows(name, key, split, config, limit), start=1)
    return tuple(_read(row, f"{name}, row {number}", f"{label}-{number}") for number, row in rows)


def _read(row: Row, where: str, id: str) -> Question:
    prompt = row.get(_PROMPT)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list):
        raise ValueError(f"{where}: {_PROMPT}: must be a text or a list of turns, got {str(prompt)[:80]}")
    text, turns = read_turns(prompt, where, _PROMPT)
    answer = next((value for name in _ANSWERS if isinstance(value := field_value(row, name), str | int | float)), "")
    return Question(id=id, text=text, answer=str(answer), source="skyrl_gym", turns=turns, columns=row)


def _check_id(name: str, where: str) -> None:
    if ":" not in name:  # module:name registers itself when it is made
        check_known(where, name, list(_package().registry), "skyrl-gym")


def _package() -> ModuleType:
    return installed("skyrl_gym", "rapo/skyrl_gym", "skyrl-gym", "skyrl-gym")

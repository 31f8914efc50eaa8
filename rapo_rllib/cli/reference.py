"""Reference of every key of a job's ``config``, with its rule, default and meaning, made from the keys' own declarations.

:func:`markdown` makes `docs/config.md`. :func:`typed` makes `algorithm/training_keys.pyi`, for editors and type checkers, which
do not run the code. A test compares both files with the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rapo_rllib.algorithm.config import RAPOConfig, training_keys
from rapo_rllib.endpoint.env import AgentOptions
from rapo_rllib.envs.external.base import ExternalOptions
from rapo_rllib.envs.external.gem_env import GemOptions
from rapo_rllib.envs.external.openenv_env import OpenEnvOptions
from rapo_rllib.envs.external.skyrl_gym_env import SkyRLGymOptions
from rapo_rllib.envs.options import CountOptions, DatasetOptions, SeedOptions, ToolEnvOptions
from rapo_rllib.envs.questions import QuestionsOptions
from rapo_rllib.envs.reasoning_gym_env import ReasoningGymOptions
from rapo_rllib.envs.word_problems.env import WordProblemsOptions
from rapo_rllib.rewards.judge import JudgeOptions
from rapo_rllib.rewards.terms import RewardOptions
from rapo_rllib.settings import FLAT, NESTED, BranchingSettings, LoraSettings, RLlibSettings, TraceFilter
from rapo_rllib.settings.knobs import knobs, shown
from rapo_rllib.web_search.options import SearchOptions

_INTRODUCTION = """\
# Every key of `config`

Made from the code by `rllib config markdown`; a test compares the two. `rllib config keys WORD` searches names and meanings.
Nested keys have a dot here and are mappings in YAML: `model.lora.rank` is `model: {lora: {rank: 16}}`. A key is refused if it
is neither here nor in RLlib's `AlgorithmConfig`, or if RAPO does not read it, as `gamma`. `preset` sets several keys by one
name: [algorithms](algorithm.md#11-other-algorithms) and [ablations](algorithm.md#ablations).
"""
# title of a section, prefix of its keys, the class that declares them
_SECTIONS: tuple[tuple[str, str, type], ...] = (
    *((cls.__name__.removesuffix("Settings"), "", cls) for cls in FLAT),
    *((f"`{name}`", f"{name}.", cls) for name, cls in NESTED.items()),
    ("`model.lora`", "model.lora.", LoraSettings),
    ("`step_trace_buffer.filter`", "step_trace_buffer.filter.", TraceFilter),
    ("`branching`", "branching.", BranchingSettings),
    ("`env_config` of every tool environment", "env_config.", ToolEnvOptions),
    ("`env_config.reward`", "env_config.reward.", RewardOptions),
    ("`env_config` of all but rapo/questions and rapo/skyrl_gym", "env_config.", CountOptions),
    ("`env_config` of rapo/word_problems and rapo/reasoning_gym", "env_config.", SeedOptions),
    ("`env_config` of rapo/questions and rapo/skyrl_gym", "env_config.", DatasetOptions),
    ("`env_config` of rapo/word_problems", "env_config.", WordProblemsOptions),
    ("`env_config` of rapo/questions", "env_config.", QuestionsOptions),
    ("`env_config` of rapo/agent", "env_config.", AgentOptions),
    ("`env_config` of rapo/reasoning_gym", "env_config.", ReasoningGymOptions),
    ("`env_config` of rapo/gem, rapo/skyrl_gym and rapo/openenv", "env_config.", ExternalOptions),
    ("`env_config` of rapo/gem", "env_config.", GemOptions),
    ("`env_config` of rapo/skyrl_gym", "env_config.", SkyRLGymOptions),
    ("`env_config` of rapo/openenv", "env_config.", OpenEnvOptions),
    ("`env_config.scorer.options` of the judge", "env_config.scorer.options.", JudgeOptions),
    ("`env_config.tools[].options` of web_search", "env_config.tools[].options.", SearchOptions),
    ("RLlib's", "", RLlibSettings),
)
_LONGEST_DEFAULT = 60
_TYPES_HEAD = '''\
"""The keys of ``RAPOConfig.training`` with their types. `rllib config typing` makes this file of `rapo_rllib/settings/`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

class TrainingKeys(TypedDict, total=False):
    """RAPO's own keys, then those that RLlib's ``training`` has."""

'''
_WRITTEN = {NoneType: "None", Any: "Any", tuple: "Sequence[Any]"}


class ConfigKey(NamedTuple):
    """One key."""

    name: str  # with the mappings it is nested in, e.g. model.lora.rank
    must_be: str  # in words
    default: str  # as Python writes it
    meaning: str


class ConfigSection(NamedTuple):
    """Keys that are shown together under ``title``."""

    title: str
    about: str
    keys: tuple[ConfigKey, ...]


def config_sections() -> list[ConfigSection]:
    """List all keys by section: flat and nested keys of RAPO, keys of ``env_config``, and RLlib's keys that matter for RAPO."""
    config = RAPOConfig()
    return [ConfigSection(title, _about(cls), tuple(_keys(config, where, cls))) for title, where, cls in _SECTIONS]


def markdown() -> str:
    """Render the whole reference as a Markdown page."""
    return "\n".join([_INTRODUCTION, *(_section_markdown(section) for section in config_sections())])


def _keys(config: RAPOConfig, where: str, cls: type) -> Iterator[ConfigKey]:
    """Yield the keys that ``cls`` declares and its bases do not; for RLlib's keys, the default is that of ``config``."""
    for name, knob in knobs(cls).items():
        if name in cls.__annotations__ and not knob.hidden and not _is_inherited(cls, name):
            default = getattr(config, name) if cls is RLlibSettings else knob.default
            yield ConfigKey(where + name, knob.must_be, _shown(default), knob.meaning)


def _is_inherited(cls: type, name: str) -> bool:
    return any(name in getattr(base, "__annotations__", {}) for base in cls.__mro__[1:])


def _about(cls: type) -> str:
    """Render the first line of the docstring of ``cls``, and the inherited keys that have another default here."""
    text = (inspect.getdoc(cls) or "").splitlines()[0].replace("``", "`")
    others = {
        name: knob.default for name, knob in knobs(cls).items() if name in cls.__annotations__ and _is_inherited(cls, name)
    }
    named = ", ".join(f"`{name}` `{_shown(default)}`" for name, default in others.items())
    return f"{text} Other defaults here: {named}." if others else text


def _shown(default: Any) -> str:
    """Render a default as Python writes it; nested settings are ``{}`` or the name of their class, and a long text is cut."""
    if is_dataclass(default):
        return "{}"
    if isinstance(default, type):
        return default.__name__
    if isinstance(default, str) and len(default) > _LONGEST_DEFAULT:
        default = default[:_LONGEST_DEFAULT].rstrip() + " ..."
    return shown(default)


def _section_markdown(section: ConfigSection) -> str:
    lines = [f"## {section.title}", "", section.about, "", "| key | must be | default | meaning |", "| --- | --- | --- | --- |"]
    for key in section.keys:
        must_be, default, meaning = (text.replace("|", "\\|").replace("\n", " ") for text in key[1:])
        lines.append(f"| `{key.name}` | {must_be} | `{default}` | {meaning} |")
    return "\n".join([*lines, ""])


def typed() -> str:
    """Render the text of ``rapo_rllib/algorithm/training_keys.pyi``."""
    own = {name: _written(kind) for name, kind, _ in training_keys()}
    rllibs = set(inspect.signature(AlgorithmConfig.training).parameters) - {"self", "kwargs", *own}
    return _TYPES_HEAD + "".join(
        f"    {name}: {kind}\n" for name, kind in {**own, **dict.fromkeys(sorted(rllibs), "Any")}.items()
    )


def _written(kind: Any) -> str:
    """Render a type as source code; nested settings are ``Mapping[str, Any]``."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " | ".join(map(_written, get_args(kind)))
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(choice) for choice in get_args(kind))}]"
    if (origin or kind) in _WRITTEN:
        return _WRITTEN[origin or kind]
    return kind.__name__ if kind in (bool, float, int, str) else "Mapping[str, Any]"


def _quoted(choice: Any) -> str:
    return f'"{choice}"' if isinstance(choice, str) else repr(choice)

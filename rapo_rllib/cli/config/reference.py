"""Every key of a job's ``config`` with its type, default and meaning, read from the code that defines it.

Meanings come from where a developer writes them: the comment behind a field of a settings class, or the ``Args`` of
``RAPOConfig.training``. So the reference cannot drift from the code: `docs/config.md` is :func:`markdown`, and a test compares.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import docstring_parser
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.cli.config.reference_rllib import RLLIB_KEYS
from rapo_rllib.envs.options import ToolEnvOptions
from rapo_rllib.envs.questions import QuestionsOptions
from rapo_rllib.envs.word_problems.env import WordProblemsOptions
from rapo_rllib.rewards.judge import JudgeOptions
from rapo_rllib.rewards.terms import RewardOptions
from rapo_rllib.settings import (
    BranchingSettings,
    BufferSettings,
    EngineSettings,
    LoraSettings,
    ModelSettings,
    ObjectiveSettings,
    ProtocolSettings,
    RolloutSettings,
    TraceFilter,
    WarmStartSettings,
)
from rapo_rllib.web_search.options import SearchOptions

_INTRODUCTION = """\
# Every key of `config`

Made from the code by `rllib config markdown`; a test compares the two. `rllib config keys WORD` shows those with WORD in name
or meaning on the terminal. Nested keys are written with a dot here and as mappings in YAML: `model.lora.rank` is
`model: {lora: {rank: 16}}`. A key that is neither in these tables nor in RLlib's `AlgorithmConfig` is refused, with the nearest
valid one named; one of RLlib's that nothing would read, as `gamma`, is refused with what to use instead. `preset` sets several
keys by one name: [ablations.md](ablations.md) and [losses.md](losses.md) list them.
"""
# where the nested keys stand, what explains the section, the class that declares them
_NESTED: tuple[tuple[str, str, type], ...] = (
    ("model", "", ModelSettings),
    ("model.lora", "", LoraSettings),
    ("engine", "", EngineSettings),
    ("protocol", "", ProtocolSettings),
    ("step_trace_buffer", "", BufferSettings),
    ("step_trace_buffer.filter", "", TraceFilter),
    ("branching", "", BranchingSettings),
    ("warm_start", "", WarmStartSettings),
    ("env_config", "of every tool environment", ToolEnvOptions),
    ("env_config.reward", "", RewardOptions),
    ("env_config", "of rapo/word_problems", WordProblemsOptions),
    ("env_config", "of rapo/questions", QuestionsOptions),
    ("env_config.scorer.options", "of the judge", JudgeOptions),
    ("env_config.tools[].options", "of web_search", SearchOptions),
)
_NOT_FOR_USERS = ("language_model",)  # what `model` becomes
_LONGEST_DEFAULT = 60
_SET_ELSEWHERE: dict[type, tuple[str, ...]] = {BufferSettings: ("level", "growth")}  # by retrieval_level and buffer_growth


@dataclass(frozen=True)
class ConfigKey:
    """One key.

    Attributes:
        name: with what it is nested in, dots between.
        type: as annotated; empty for keys of RLlib's.
        default: as Python writes it.
        meaning: one sentence or so; empty if the code does not say.
    """

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class ConfigSection:
    """Keys that are shown together under ``title``."""

    title: str
    about: str
    keys: tuple[ConfigKey, ...]


def config_sections() -> list[ConfigSection]:
    """All keys: the flat ones of ``RAPOConfig``, the nested ones, and those of RLlib's that matter for RAPO."""
    flat = ConfigSection("RAPO's own", "Attributes of `RAPOConfig`, set by `training()` or in YAML.", tuple(_flat_keys()))
    nested = [
        ConfigSection(f"`{where}` {of}".strip(), _first_line(cls), tuple(_nested_keys(where, cls)))
        for where, of, cls in _NESTED
    ]
    about = "Any key of RLlib's `AlgorithmConfig` may be set; these are the ones that matter here, with RAPO's defaults."
    return [flat, *nested, ConfigSection("RLlib's", about, tuple(_rllib_keys()))]


def field_comments(cls: type) -> dict[str, str]:
    """The comment behind each field that the body of ``cls`` itself declares; fields without one are left out."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]  # a class has a body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = [comments[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments]
            if said:
                found[node.target.id] = " ".join(said)
    return found


def markdown() -> str:
    """The whole reference as a page."""
    return "\n".join([_INTRODUCTION, *(_section_markdown(section) for section in config_sections())])


def _flat_keys() -> Iterator[ConfigKey]:
    """RAPO's own attributes; ``training()`` says more of a key than the settings that it ends in, so it is asked first."""
    config, signature = RAPOConfig(), inspect.signature(RAPOConfig.training).parameters
    said = {item.arg_name: item.description for item in docstring_parser.parse(RAPOConfig.training.__doc__ or "").params}
    declared = [(field, field_comments(cls)) for cls in (RolloutSettings, ObjectiveSettings) for field in fields(cls)]
    types = {field.name: str(field.type) for field, _ in declared}
    comments = {field.name: found[field.name] for field, found in declared if field.name in found}
    inherited = vars(AlgorithmConfig())
    for key in sorted({*vars(config), "model"}):
        if (key in inherited and key != "model") or key.startswith("_") or key in _NOT_FOR_USERS:
            continue
        default = {} if key == "model" else getattr(config, key)
        kind = str(signature[key].annotation) if key in signature else types[key]
        yield ConfigKey(key, kind, _shown(default), _one_line(said.get(key) or comments.get(key, "")))


def _nested_keys(where: str, cls: type) -> Iterator[ConfigKey]:
    comments = field_comments(cls)
    for field in fields(cls):
        if field.name in cls.__annotations__ and field.name not in _SET_ELSEWHERE.get(cls, ()):
            factory = field.default_factory
            default = field.default if factory is MISSING else factory()
            meaning = _one_line(comments.get(field.name, ""))
            yield ConfigKey(f"{where}.{field.name}", str(field.type), _shown(default), meaning)


def _rllib_keys() -> Iterator[ConfigKey]:
    config = RAPOConfig()
    for key, meaning in RLLIB_KEYS.items():
        yield ConfigKey(key, "", _shown(getattr(config, key)), meaning)


def _shown(default: Any) -> str:
    """``default`` as Python writes it; what has keys of its own is a mapping, and a long text is cut."""
    if is_dataclass(default):
        return "{}"
    if isinstance(default, type):
        return default.__name__
    if isinstance(default, str):
        return repr(default if len(default) <= _LONGEST_DEFAULT else default[:_LONGEST_DEFAULT].rstrip() + " ...")
    return repr(default)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").removesuffix(".")


def _section_markdown(section: ConfigSection) -> str:
    lines = [f"## {section.title}", "", section.about, "", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key in section.keys:
        kind = f"`{_cell(key.type)}`" if key.type else ""
        lines.append(f"| `{key.name}` | {kind} | `{_cell(key.default)}` | {_cell(key.meaning)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """``text`` between the bars of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0].replace("``", "`")

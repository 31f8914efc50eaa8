"""Values as people write them in jobs and options: YAML, search expressions, and keys with dots.

YAML: ``5e-6`` is a number, a key given twice is a mistake, and errors name line and column. As in YAML 1.1, ``yes`` and ``on``
are true, ``no`` and ``off`` false. Its other special values are texts here: ``12:30`` (750 there), ``010``, ``2024-05-01``.

Searches: ``{loguniform: [1e-6, 1e-4]}`` is ``tune.loguniform(1e-6, 1e-4)``, ``{choice: [4, 8]}`` is ``tune.choice([4, 8])``;
``grid_search`` is left to Tune.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

SEARCHES = (
    *("uniform", "quniform", "loguniform", "qloguniform", "randn", "qrandn"),
    *("randint", "qrandint", "lograndint", "qlograndint", "choice"),
)
_GRID = "grid_search"
_TAG = "tag:yaml.org,2002:"
# tag of YAML, the texts that get it, and the characters that these may begin with
_PLAIN = (
    (f"{_TAG}null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (f"{_TAG}bool", r"(?i:true|false|yes|no|on|off)", list("tTfFyYnNoO")),
    (f"{_TAG}int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)", list("-+0123456789")),
    (f"{_TAG}float", r"[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))([eE][-+]?\d+)?", list("-+.0123456789")),
    (f"{_TAG}float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    (f"{_TAG}merge", r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without YAML 1.1's surprises."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping; a repeated key is an error, not an overwrite."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be a single name (a template {{ … }} must be filled in)"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}  # not PyYAML's own
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def yaml_value(text: str) -> Any:
    """Parse a text as YAML.

    Raises:
        ValueError: it is not YAML; names line and column.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, AttributeError) as error:  # the last two: !!int x, !!timestamp x
        raise ValueError(f"not YAML: {error}") from error


def yaml_file(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: it is unreadable, or not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    return yaml_value(text)


def is_search(value: Any) -> bool:
    """Check whether ``value`` is a search expression: ``{name of a search: [arguments]}``."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((name, arguments),) = value.items()
    return name == _GRID or (name in SEARCHES and isinstance(arguments, list))


def with_searches(value: Any, where: str) -> Any:
    """Replace search expressions at any depth by the objects that Tune samples from, but leave ``grid_search`` as it is.

    Args:
        value: as a file has it; it is not changed, the result is a copy.
        where: its key, for messages.

    Raises:
        ValueError: an expression is wrong; names its key.
    """
    if isinstance(value, list):
        return [with_searches(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, dict) or _GRID in value:
        return value
    if is_search(value):
        ((name, arguments),) = value.items()
        return _domain(name, arguments, where)
    return {key: with_searches(item, f"{where}.{key}") for key, item in value.items()}


def _domain(name: str, arguments: list[Any], where: str) -> Any:
    from ray import tune

    shown = f"{where} = {{{name}: {arguments}}}"
    if name != "choice" and not all(isinstance(number, int | float) for number in arguments):
        raise ValueError(f"{shown}: its arguments are numbers, as those of ray.tune.{name}")
    try:
        domain = tune.choice(arguments) if name == "choice" else getattr(tune, name)(*arguments)
        domain.sample()
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{shown}: {error}") from error
    if name not in ("choice", "randn", "qrandn") and arguments[0] >= arguments[1]:
        raise ValueError(f"{shown}: the first number is the lower end, the second the upper")
    return domain


def set_dotted(config: dict[str, Any], key: str, value: Any) -> None:
    """Set ``config[a][b]`` for the key ``a.b``. Raises ``ValueError`` if ``a`` was just set to a plain value."""
    *parents, last = key.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
        if not isinstance(config, dict):
            raise ValueError(f"--set {key}: {parent} was just set to {config!r}, which has no keys")
    config[last] = value


def merge(config: dict[str, Any], changes: dict[str, Any], where: str = "") -> None:
    """Merge ``changes`` into ``config`` itself, level by level. Raises ``ValueError`` for keys of a value that has none."""
    for key, value in changes.items():
        old = config.get(key)
        if isinstance(value, dict) and not is_search(value) and old is not None:
            if not isinstance(old, dict):
                raise ValueError(f"--set {where}{key}: its value is {old!r}, which has no keys")
            config[key] = dict(old)
            merge(config[key], value, f"{where}{key}.")
        else:
            config[key] = value


def with_overrides(config: AlgorithmConfig, overrides: Iterable[tuple[str, Any]]) -> AlgorithmConfig:
    """Set the keys of ``--set`` in ``config`` itself, and return it; ``engine.dtype`` leaves the rest of ``engine`` as it is.

    Raises:
        ValueError: there is no such key, or its value has no keys.
    """
    from rapo_rllib.config.checks import refuse_unknown

    given: dict[str, Any] = {}
    for key, value in overrides:
        set_dotted(given, key, value)
    refuse_unknown(config, given, "--set ")
    changed = {key: _own(config, key) for key in given}
    merge(changed, given)
    config.update_from_dict(changed)
    return config


def _own(config: AlgorithmConfig, key: str) -> Any:
    return config.language_model if key == "model" and hasattr(config, "language_model") else getattr(config, key, None)

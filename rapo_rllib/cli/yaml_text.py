"""YAML as people mean it: ``5e-6`` is a number, a key given twice is a mistake, and errors say where they are.

``yes``, ``no``, ``on`` and ``off`` are true and false; what else only YAML 1.1 takes for more than a text is one: ``12:30``
(750 there), ``010``, ``2024-05-01``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
# tag, what is read so, and the characters that it may begin with
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
    """The value of ``text``.

    Raises:
        ValueError: not YAML; names line and column.
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
    """The content of the file ``path``.

    Raises:
        ValueError: unreadable, or not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    return yaml_value(text)

"""YAML as people mean it: ``5e-6`` is a number, a key given twice is a mistake, and errors say where they are.

What YAML 1.1 and 1.2 read differently is refused (``no``, ``on``, ``010``), and what only 1.1 takes for a number or a date is a
text: ``12:30`` (750 there), ``2024-05-01``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_TAG, _AMBIGUOUS = "tag:yaml.org,2002:", "!ambiguous"
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
# tag, what is read so, and the characters that it may begin with
_PLAIN = (
    (f"{_TAG}null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (f"{_TAG}bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_AMBIGUOUS, r"(?i:yes|no|on|off)|[-+]?0[0-9_]+", list("yYnNoO-+0")),
    (f"{_TAG}int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)", list("-+0123456789")),
    (f"{_TAG}float", r"[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))([eE][-+]?\d+)?", list("-+.0123456789")),
    (f"{_TAG}float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    (f"{_TAG}merge", r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without YAML 1.1's surprises."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As usual, but a repeated key is an error, not an overwrite, and so is one that is no single value."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, _no_key(node, key_node), key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def refuse(self, node: yaml.ScalarNode) -> None:
        """Say what can be meant by a value that the versions of YAML read differently."""
        text = str(node.value)
        meant = _SWITCHES.get(text.lower()) or f"{int(text.replace('_', ''))} (or 0o… for an octal number)"
        problem = f"{text} means different things to different YAML readers: write {meant}, or '{text}' for the text"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.yaml_implicit_resolvers = {}  # not PyYAML's own
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_AMBIGUOUS, _Loader.refuse)


def _no_key(node: yaml.Node, key_node: yaml.Node) -> str:
    """Tell what is wrong with a list or a mapping in the place of a key, above all ``{{ name }}``."""
    line = _line(key_node.start_mark)
    if isinstance(key_node, yaml.MappingNode) and node.start_mark.index == key_node.start_mark.index - 1:
        return f"a template was not filled in: {line!r}; write the value in the place of {{{{ … }}}}"
    return f"a key must be a single name, not a list or a mapping: {line!r}"


def _line(mark: yaml.Mark) -> str:
    lines = str(mark.buffer or "").rstrip("\0").splitlines()
    return lines[mark.line].strip() if mark.line < len(lines) else ""


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

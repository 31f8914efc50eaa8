"""The one declaration of a key: its type, default, bounds and meaning. Checks, ``training()``, help and docs are made from it.

@dataclass(frozen=True)
class RolloutSettings(Knobs):
    group_size: int = knob(16, "`G`, trajectories per question", at_least=1)

RolloutSettings(group_size=0)    -> ValueError: group_size = 0: must be a whole number at least 1
knobs(RolloutSettings)           -> its keys by name, of which the page of all keys and the signature of ``training()`` are made
build(RolloutSettings, mapping)  -> RolloutSettings of a user's mapping: unknown keys are refused, lists become tuples
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rapo_rllib.validation import MOST, MOST_SECONDS, refuse_unknown_keys

_NAMES: dict[Any, str] = {bool: "true or false", str: "a text", dict: "a mapping", Mapping: "a mapping", NoneType: "null"}

Declared = TypeVar("Declared")


def knob(default: Any, meaning: str, **rules: Any) -> Any:
    """Declare a key as a field of a :class:`Knobs` class. Its type, ``Literal`` choices included, is the annotation.

    Args:
        default: its default value, or a class or function that is called to make one.
        meaning: its meaning in a phrase, with the values of the paper or of other code if they differ.
        **rules: bounds and checks: fields of :class:`Knob`.
    """
    metadata = {"knob": Knob(meaning, **rules)}
    return field(default_factory=default, metadata=metadata) if callable(default) else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Knob:
    """One declared key: the arguments of :func:`knob`, then the name, annotation and default of its field."""

    meaning: str
    at_least: float | None = None  # lower bound of a number, or of each number in a list
    above: float | None = None  # a lower bound that is itself excluded
    at_most: float | None = None  # upper bound; None: ``MOST``, or ``MOST_SECONDS`` of a timeout
    rule: str = ""  # what a value must be, in words; empty: made of type and bounds
    check: Callable[[str, Any], None] | None = None  # checks name and value, in place of type and bounds; raises ValueError
    hidden: bool = False  # another key sets it, so it is not shown to users
    may_be_empty: bool = False  # whether a text may be empty; a text with an empty default always may
    name: str = ""
    kind: Any = None
    default: Any = None

    @property
    def must_be(self) -> str:
        """The rule of a value in words: ``a whole number at least 1 or null``."""
        return self.rule or " or ".join(self._words(kind) for kind in _kinds(self.kind))

    def refuse(self, name: str, value: Any) -> None:
        """Raise ``ValueError``, naming key, value and rule, if ``value`` is wrong."""
        if self.check is not None:
            self.check(name, value)
        elif not any(self._suits(value, kind) for kind in _kinds(self.kind)):
            raise ValueError(f"{name} = {shown(value)}: must be {self.must_be}{self._unsaid(value)}")

    def _unsaid(self, value: Any) -> str:
        """Name the rule that ``value`` broke if ``must_be`` leaves it out: no empty text, or the default upper bound."""
        if value == "":
            return ", and not empty"
        said = self.at_most is not None and not self.rule
        return f", and at most {self._most:.10g}" if isinstance(value, int | float) and value > self._most and not said else ""

    @property
    def _most(self) -> float:
        if self.at_most is not None:
            return self.at_most
        return MOST_SECONDS if self.name.endswith("timeout_s") else MOST

    def _suits(self, value: Any, kind: Any) -> bool:
        if kind is Any:
            return True
        if get_origin(kind) is Literal:
            return any(value is choice or (type(value) is type(choice) and value == choice) for choice in get_args(kind))
        if get_origin(kind) is tuple:
            return isinstance(value, tuple) and all(Knob._suits(self, item, get_args(kind)[0]) for item in value)
        if kind in (int, float):
            number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            return number and self._within(value)
        if kind is str and value == "":
            return self.may_be_empty or self.default == ""
        return isinstance(value, get_origin(kind) or kind)

    def _within(self, value: float) -> bool:
        low = -MOST if self.at_least is None else self.at_least  # NaN is within nothing
        return low <= value <= self._most and (self.above is None or value > self.above)

    def _words(self, kind: Any) -> str:
        if kind in (int, float):
            return self._number("a whole number" if kind is int else "")
        if get_origin(kind) is Literal:
            choices = get_args(kind)
            return ("one of " if len(choices) > 1 else "") + ", ".join(map(repr, choices))
        if get_origin(kind) is tuple:
            return "a list of texts" if get_args(kind)[0] is str else "a list"
        if isinstance(kind, type) and issubclass(kind, Knobs):
            return f"a mapping of {', '.join(knobs(kind))}"
        return _NAMES.get(get_origin(kind) or kind, "anything")

    def _number(self, noun: str) -> str:
        noun = "a number" if self.above is not None and not noun else noun
        named = (("at least", self.at_least), ("above", self.above), ("at most", self.at_most))
        bounds = " and ".join(f"{word} {value}" for word, value in named if value is not None)
        if self.at_least is not None and self.at_most is not None:
            bounds = f"between {self.at_least} and {self.at_most}"
        return f"{noun} {bounds}".strip() or "a number"


class Knobs:
    """Base of dataclasses of declared keys, which check their values when made; fields that are no knobs are not checked."""

    where: ClassVar[str] = ""  # prefix of the keys in a job, dot included

    def __post_init__(self) -> None:
        for name, declared in knobs(type(self)).items():
            declared.refuse(self.where + name, getattr(self, name))


def knobs(cls: type) -> dict[str, Knob]:
    """Return the declared keys of ``cls`` by name, in their order, inherited ones first."""
    return _read(cls)[1]


@cache
def _read(cls: Any) -> tuple[dict[str, Any], dict[str, Knob]]:
    """Read the annotations of all fields, and the declarations of those that are knobs."""
    hints, found = get_type_hints(cls), {}
    for f in fields(cls):
        if "knob" in f.metadata:
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found[f.name] = replace(f.metadata["knob"], name=f.name, kind=hints[f.name], default=default)
    return hints, found


def build(cls: type[Declared], values: Mapping[str, Any], where: str | None = None) -> Declared:
    """Make ``cls`` from a user's mapping; nested mappings become nested settings, lists become tuples.

    Args:
        cls: a dataclass of settings.
        values: what a user wrote.
        where: prefix of its keys, dot included; None: that of ``cls``.

    Raises:
        ValueError: an unknown key, named with the nearest valid one, or what ``cls`` itself refuses.
    """
    where = getattr(cls, "where", "") if where is None else where
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise ValueError(f"{where.removesuffix('.')} = {values!r}: must be a mapping of {', '.join(names)}")
    refuse_unknown_keys(values, names, where)
    declared: Any = cls
    hints = _read(declared)[0]
    return cls(**{key: _made(hints[key], value, f"{where}{key}.") for key, value in values.items()})


def _made(hint: Any, value: Any, where: str) -> Any:
    nested = [kind for kind in _kinds(hint) if isinstance(kind, type) and is_dataclass(kind)]
    if nested and not isinstance(value, nested[0]) and not (value is None and NoneType in _kinds(hint)):
        return build(nested[0], value, where)
    return _as_tuples(value)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def shown(value: Any) -> str:
    """Render ``value`` as Python writes it, with tuples as the lists that a user wrote."""
    return repr(_as_lists(value))


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)

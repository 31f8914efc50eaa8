"""Makes one word problem: chooses sentences, draws numbers until the story works out, writes the text and the solution.

random generator -> composition of pieces -> numbers and steps -> WordProblem
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from itertools import permutations

from rapo_rllib.envs.word_problems.pieces import DAYS, NAMES_HE, NAMES_SHE, PLACES, THEMES, Piece, Theme

_OPERATORS = {"+": "+", "-": "-", "*": "*", "/": "//"}
_MAX_FEW = 6
_MAX_GROWTH = 10  # no quantity grows past this many times max_number
_MAX_EVENTS = 2
_ATTEMPTS = 200


@dataclass(frozen=True)
class Composition:
    """A template: which sentences follow each other."""

    theme: Theme
    pieces: tuple[Piece, ...]  # opening, events, ending

    @property
    def name(self) -> str:
        """Unique among all compositions, for example ``collection/has+buys+now``."""
        return f"{self.theme.name}/{'+'.join(piece.name for piece in self.pieces)}"

    @property
    def num_steps(self) -> int:
        """Arithmetic operations of the solution."""
        return sum(len(piece.steps) for piece in self.pieces)


@dataclass(frozen=True)
class Operation:
    """One arithmetic step, in Python."""

    code: str  # "12 + 5"
    value: int  # 17


@dataclass(frozen=True)
class WordProblem:
    """A question with its solution."""

    template: str
    numbers: tuple[int, ...]  # of the pieces, in order; without those of irrelevant facts
    text: str
    operations: tuple[Operation, ...]

    @property
    def answer(self) -> int:
        """The value of the last operation."""
        return self.operations[-1].value


@cache
def compositions(num_steps: int) -> tuple[Composition, ...]:
    """All templates whose solution takes ``num_steps`` operations."""
    found = []
    for theme in THEMES:
        for count in range(_MAX_EVENTS + 1):
            for opening in theme.openings:
                for events in permutations(theme.events, count):
                    found += [Composition(theme, (opening, *events, ending)) for ending in theme.endings]
    return tuple(composition for composition in found if composition.num_steps == num_steps)


def make_problem(rng: random.Random, num_steps: int, max_number: int) -> WordProblem:
    """Draw one problem of ``num_steps`` operations with numbers up to ``max_number``."""
    choices = compositions(num_steps)
    for _ in range(_ATTEMPTS):
        composition = rng.choice(choices)
        worked_out = _work_out(composition, rng, max_number)
        if worked_out is not None:
            slots, operations = worked_out
            text = _told(composition, slots, rng)
            numbers = tuple(number for piece_slots in slots for number in piece_slots.values())
            return WordProblem(composition.name, numbers, text, operations)
    raise ValueError(f"env_config.max_number = {max_number!r}: no story of {num_steps} steps works out; raise it")


def draw_number(how: str, x: int, max_number: int, rng: random.Random) -> int | None:
    """A number for a slot, given the running quantity ``x``; None if there is none."""
    if how == "divisor":
        fitting = [d for d in range(2, max_number + 1) if x % d == 0 and d < x]
        return rng.choice(fitting) if fitting else None
    low, high = {
        "many": (2, max_number),
        "few": (2, min(_MAX_FEW, max_number)),
        "part": (2, x - 2),
        "above": (x + 2, x + max_number),
    }[how]
    return rng.randint(low, high) if low <= high else None


def _work_out(
    composition: Composition, rng: random.Random, max_number: int
) -> tuple[list[dict[str, int]], tuple[Operation, ...]] | None:
    """Numbers of every piece and the operations; None if some quantity is no whole number in range."""
    x = 0
    slots: list[dict[str, int]] = []
    operations: list[Operation] = []
    for piece in composition.pieces:
        drawn: dict[str, int] = {}
        for slot, how in piece.numbers.items():
            number = draw_number(how, x, max_number, rng)
            if number is None:
                return None
            drawn[slot] = number
        known = {"x": x, **drawn}
        for step in piece.steps:
            operation = _operation(step, known)
            if not 2 <= operation.value <= _MAX_GROWTH * max_number:
                return None
            operations.append(operation)
            known["s"] = operation.value
        x = known["s"] if piece.steps else known["x"]
        slots.append(drawn)
    return slots, tuple(operations)


def _operation(step: str, known: dict[str, int]) -> Operation:
    left, operator, right = step.split()
    a, b = known[left], known[right]
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
    return Operation(f"{a} {_OPERATORS[operator]} {b}", value)


def _told(composition: Composition, slots: list[dict[str, int]], rng: random.Random) -> str:
    words = _cast(composition.theme, rng)
    sentences = [piece.text.format(**words, **drawn) for piece, drawn in zip(composition.pieces, slots, strict=True)]
    rng.random()  # the problems of a seed, which figures were measured with, have a draw here
    return " ".join(sentences)


def _cast(theme: Theme, rng: random.Random) -> dict[str, str]:
    """Draw the persons and things of a story. The friend is of the other gender, so that "she" and "he" are clear."""
    female = rng.random() < 0.5
    own, other = (NAMES_SHE, NAMES_HE) if female else (NAMES_HE, NAMES_SHE)
    she, her, possessive = ("she", "her", "Her") if female else ("he", "him", "His")
    words = {"name": rng.choice(own), "friend": rng.choice(other), "she": she, "her": her, "Her": possessive}
    words |= {"item": rng.choice(theme.items), "place": rng.choice(PLACES), "day": rng.choice(DAYS)}
    return words | {"She": she.capitalize()}

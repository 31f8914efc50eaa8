"""Sentences from which word problems are put together, each with its arithmetic.

A story is an opening, zero or more events, and an ending. ``x`` is the running quantity; ``steps`` lists the operations by
which a sentence changes it. ``numbers`` says how the number in a slot is drawn (``env.draw_number``). The other slots are
the same in a whole story: ``{name} {friend} {she} {her} {item} {place} {day}``; ``{She}`` and ``{Her}`` begin a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# How a number is drawn: many 2..max_number, few 2..6, part 2..x-2 (some of x), divisor (of x), above (more than x)
MANY, FEW, PART, DIVISOR, ABOVE = "many", "few", "part", "divisor", "above"


@dataclass(frozen=True)
class Piece:
    """One sentence of a story, with its arithmetic."""

    name: str  # unique within its kind and theme
    text: str
    steps: tuple[str, ...]  # "left operator right" over x, the slots, and s (result of the step before)
    numbers: Mapping[str, str]  # slot -> how it is drawn


def _piece(name: str, text: str, *steps: str, **numbers: str) -> Piece:
    """Build a piece. Example: ``_piece("buys", "{She} buys {a} more.", "x + a", a=MANY)``."""
    return Piece(name, text, steps, numbers)


@dataclass(frozen=True)
class Theme:
    """Sentences that go together in any combination."""

    name: str
    items: tuple[str, ...]
    openings: tuple[Piece, ...]
    events: tuple[Piece, ...]
    endings: tuple[Piece, ...]


_HAS = _piece("has", "{name} has {x} {item}.", x=MANY)
_GROUPS = _piece("groups", "{name} has {a} boxes with {b} {item} in each box.", "a * b", a=FEW, b=FEW)
_TWO = _piece("two", "{name} has {a} red {item} and {b} blue {item}.", "a + b", a=MANY, b=MANY)

COLLECTION = Theme(
    "collection",
    (
        *("marbles", "stickers", "stamps", "buttons", "beads", "shells"),
        *("coins", "cards", "pencils", "balloons", "ribbons", "blocks"),
    ),
    (
        _HAS,
        _piece("found", "{name} finds {x} {item} at the {place} on {day}.", x=MANY),
        _GROUPS,
        _TWO,
        _piece("times", "{friend} has {a} {item}. {name} has {b} times as many.", "a * b", a=MANY, b=FEW),
        _piece("more", "{friend} has {a} {item}. {name} has {b} more than {friend}.", "a + b", a=MANY, b=MANY),
        _piece("rows", "{name} lays out {a} rows of {b} {item}, and holds {c} more.", "a * b", "s + c", a=FEW, b=FEW, c=MANY),
    ),
    (
        _piece("buys", "{She} buys {a} more {item} at the {place}.", "x + a", a=MANY),
        _piece("gift", "{friend} gives {name} {a} more {item}.", "x + a", a=MANY),
        _piece("gives", "{She} gives {a} {item} to {friend}.", "x - a", a=PART),
        _piece("loses", "{She} loses {a} {item} at the {place}.", "x - a", a=PART),
        _piece("packs", "{She} buys {a} packs of {b} {item} each.", "a * b", "x + s", a=FEW, b=FEW),
        _piece("kids", "{She} gives {b} {item} to each of {a} children.", "a * b", "x - s", a=FEW, b=FEW),
    ),
    (
        _piece("now", "How many {item} does {name} have now?"),
        _piece("share", "{She} shares them equally among {a} bags. How many {item} are in each bag?", "x / a", a=DIVISOR),
        _piece("sell", "{She} sells them all for {a} dollars each. How many dollars does {she} get?", "x * a", a=FEW),
        _piece("goal", "{She} wants {a} {item}. How many more does {she} need?", "a - x", a=ABOVE),
    ),
)

FOOD = Theme(
    "food",
    ("cookies", "muffins", "cakes", "pies", "rolls", "tarts", "waffles", "pancakes"),
    (
        _piece("bakes", "{name} bakes {x} {item} for the {place}.", x=MANY),
        _piece("trays", "{name} bakes {a} trays of {item}. There are {b} {item} on each tray.", "a * b", a=FEW, b=FEW),
        _piece("days", "{name} bakes {a} {item} on {day} and {b} {item} on the next day.", "a + b", a=MANY, b=MANY),
        _piece("hours", "{name} bakes {b} {item} every hour for {a} hours.", "a * b", a=FEW, b=MANY),
    ),
    (
        _piece("eats", "{Her} family eats {a} {item}.", "x - a", a=PART),
        _piece("burnt", "{She} throws away {a} burnt {item}.", "x - a", a=PART),
        _piece("bakes", "Then {she} bakes {a} more {item}.", "x + a", a=MANY),
        _piece("brings", "{friend} brings {a} more {item}.", "x + a", a=MANY),
        _piece("double", "{friend} brings {a} plates with {b} {item} each.", "a * b", "x + s", a=FEW, b=FEW),
    ),
    (
        _piece("left", "How many {item} are there now?"),
        _piece("boxes", "{She} puts {a} {item} in each box. How many boxes does {she} fill?", "x / a", a=DIVISOR),
        _piece("sell", "{She} sells every one for {a} dollars. How many dollars does {she} earn?", "x * a", a=FEW),
        _piece("sold", "{She} sells {a} of them. How many {item} are left?", "x - a", a=PART),
    ),
)

MONEY = Theme(
    "money",
    ("dollars",),
    (
        _piece("saved", "{name} has saved {x} dollars.", x=MANY),
        _piece("hourly", "{name} earns {b} dollars an hour and works for {a} hours.", "a * b", a=FEW, b=MANY),
        _piece("weekly", "{name} saves {b} dollars every week for {a} weeks.", "a * b", a=FEW, b=MANY),
        _piece("jobs", "{name} earns {a} dollars for washing cars and {b} dollars for raking leaves.", "a + b", a=MANY, b=MANY),
    ),
    (
        _piece("spends", "{She} spends {a} dollars at the {place}.", "x - a", a=PART),
        _piece("gift", "{Her} aunt gives {her} {a} dollars on {day}.", "x + a", a=MANY),
        _piece("lends", "{She} lends {a} dollars to {friend}.", "x - a", a=PART),
        _piece("tickets", "{She} buys {a} tickets for {b} dollars each.", "a * b", "x - s", a=FEW, b=FEW),
        _piece("lawns", "{She} mows {a} lawns for {b} dollars each.", "a * b", "x + s", a=FEW, b=FEW),
    ),
    (
        _piece("now", "How many dollars does {name} have now?"),
        _piece("bike", "A bike costs {a} dollars. How many more dollars does {she} need?", "a - x", a=ABOVE),
        _piece(
            "toys", "{She} buys toys for {a} dollars each with all of it. How many toys does {she} get?", "x / a", a=DIVISOR
        ),
        _piece("friends", "{friend} has {a} times as much. How many dollars does {friend} have?", "x * a", a=FEW),
    ),
)

READING = Theme(
    "reading",
    ("pages",),
    (
        _piece("book", "{name} reads {x} pages on {day}.", x=MANY),
        _piece("daily", "{name} reads {b} pages a day for {a} days.", "a * b", a=FEW, b=MANY),
        _piece("twice", "{name} reads {a} pages in the morning and {b} pages in the evening.", "a + b", a=MANY, b=MANY),
        _piece("longer", "{friend} reads {a} pages. {name} reads {b} times as many.", "a * b", a=MANY, b=FEW),
    ),
    (
        _piece("train", "On the train {she} reads {a} more pages.", "x + a", a=MANY),
        _piece("nights", "Then {she} reads {b} pages on each of {a} nights.", "a * b", "x + s", a=FEW, b=FEW),
        _piece("school", "At school {she} reads {a} more pages.", "x + a", a=MANY),
    ),
    (
        _piece("all", "How many pages does {name} read in all?"),
        _piece("rest", "The book has {a} pages. How many pages are left to read?", "a - x", a=ABOVE),
        _piece("chapters", "Each chapter has {a} pages. How many chapters does {she} read?", "x / a", a=DIVISOR),
        _piece("minutes", "A page takes {a} minutes. How many minutes does {she} read?", "x * a", a=FEW),
    ),
)

TRAVEL = Theme(
    "travel",
    ("miles",),
    (
        _piece("drives", "{name} drives {x} miles to the {place}.", x=MANY),
        _piece("speed", "{name} rides a bike at {b} miles an hour for {a} hours.", "a * b", a=FEW, b=MANY),
        _piece("legs", "{name} drives {a} miles to the {place} and {b} miles to see {friend}.", "a + b", a=MANY, b=MANY),
        _piece("daily", "{name} walks {b} miles a day for {a} days.", "a * b", a=FEW, b=FEW),
    ),
    (
        _piece("further", "After lunch {she} goes {a} miles further.", "x + a", a=MANY),
        _piece("detour", "A detour adds {a} miles.", "x + a", a=MANY),
        _piece("laps", "Then {she} does {a} laps of {b} miles each.", "a * b", "x + s", a=FEW, b=FEW),
    ),
    (
        _piece("all", "How many miles does {name} go in all?"),
        _piece("rest", "The whole trip is {a} miles. How many miles are left?", "a - x", a=ABOVE),
        _piece("days", "{She} takes {a} days and goes equally far each day. How many miles is that a day?", "x / a", a=DIVISOR),
        _piece("times", "{She} makes this trip {a} times. How many miles is that?", "x * a", a=FEW),
    ),
)

STORE = Theme(
    "store",
    ("apples", "eggs", "oranges", "lemons", "pears", "plums", "melons", "onions", "potatoes", "carrots"),
    (
        _piece("stock", "A shop near the {place} has {x} {item}.", x=MANY),
        _piece("crates", "A farmer brings {a} crates with {b} {item} in each crate.", "a * b", a=FEW, b=MANY),
        _piece("shelves", "A shop has {a} {item} on the shelf and {b} {item} in the back.", "a + b", a=MANY, b=MANY),
        _piece(
            "full", "A farmer picks {a} baskets of {b} {item}, and {c} {item} are bad.", "a * b", "s - c", a=FEW, b=MANY, c=FEW
        ),
    ),
    (
        _piece("sold", "On {day}, {a} {item} are sold.", "x - a", a=PART),
        _piece("delivery", "A truck brings {a} more {item}.", "x + a", a=MANY),
        _piece("buys", "{name} buys {a} of the {item}.", "x - a", a=PART),
        _piece("each", "Then {a} people buy {b} {item} each.", "a * b", "x - s", a=FEW, b=FEW),
    ),
    (
        _piece("left", "How many {item} are there now?"),
        _piece("bags", "The rest go into bags of {a}. How many bags are there?", "x / a", a=DIVISOR),
        _piece("price", "Each costs {a} dollars. How many dollars do all of them cost?", "x * a", a=FEW),
        _piece("spoil", "Then {a} of them go bad. How many good {item} are left?", "x - a", a=PART),
    ),
)

SCHOOL = Theme(
    "school",
    ("students",),
    (
        _piece("class", "There are {x} students in the hall.", x=MANY),
        _piece("tables", "There are {a} tables with {b} students at each table.", "a * b", a=FEW, b=FEW),
        _piece("girls", "There are {a} girls and {b} boys in the class of {name}.", "a + b", a=MANY, b=MANY),
        _piece("buses", "On {day}, {a} buses bring {b} students each to the {place}.", "a * b", a=FEW, b=MANY),
    ),
    (
        _piece("leave", "Then {a} students go home.", "x - a", a=PART),
        _piece("join", "Then {a} more students come in.", "x + a", a=MANY),
        _piece("vans", "Then {a} vans bring {b} more students each.", "a * b", "x + s", a=FEW, b=FEW),
        _piece("sick", "Of them, {a} feel sick and leave.", "x - a", a=PART),
    ),
    (
        _piece("now", "How many students are there now?"),
        _piece("teams", "They form {a} equal teams. How many students are in each team?", "x / a", a=DIVISOR),
        _piece("sheets", "Each student needs {a} sheets of paper. How many sheets is that?", "x * a", a=FEW),
        _piece("seats", "The room has {a} seats. How many seats stay empty?", "a - x", a=ABOVE),
    ),
)

THEMES = (COLLECTION, FOOD, MONEY, READING, TRAVEL, STORE, SCHOOL)

NAMES_SHE = (
    *("Anna", "Maria", "Lucy", "Emma", "Sofia", "Nora", "Mia", "Zoe", "Ella", "Grace", "Ruth", "Clara", "Lily", "Amy", "Jane"),
    *("Kate", "Sara", "Tina", "Rosa", "Leah", "Hana", "Mei", "Priya", "Aisha", "Ines", "Olga", "Vera", "Ivy", "Julia", "Dana"),
)
NAMES_HE = (
    *("Tom", "Ben", "Sam", "Leo", "Max", "Jack", "Paul", "Luke", "Adam", "Noah", "Omar", "Ravi", "Ivan", "Juan", "Carl"),
    *("Mark", "Dan", "Eric", "Fred", "Hugo", "Ken", "Liam", "Nick", "Oscar", "Pete", "Ryan", "Tim", "Will", "Ali", "Yusuf"),
)
PLACES = ("market", "park", "school", "library", "beach", "station", "fair", "museum", "lake", "farm", "zoo", "club")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

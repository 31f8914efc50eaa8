"""One table of mathematical answers that must pass and must fail. How many of them do not stands in docs/rewards.md.

PYTHONPATH=. python tests/support/math_table.py shared/data/eval/math500.jsonl
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from maths_cases import CASES

from rapo_rllib.rewards.maths import math_score
from rapo_rllib.types import Question

Pair = tuple[str, str]  # predicted, gold
Group = tuple[str, str, list[str]]  # why, gold, predicted answers


def groups(name: str) -> list[Group]:
    lines = (Path(__file__).parent / f"{name}_answers.jsonl").read_text(encoding="utf-8").splitlines()
    return [tuple(json.loads(line).values()) for line in lines]


RIGHT, WRONG = groups("right"), groups("wrong")
# known to be judged otherwise: what would mend it costs other answers, or more rules than it is worth
REFUSED = [  # though right
    ("half", "1/2"),
    ("5 (five)", "5"),
    ("1_234_567", "1234567"),
    ("1'234'567", "1234567"),
    ("05/06/2024", "2024-05-06"),
    ("x \\in \\{1, -3\\}", "x=1 \\text{ or } x=-3"),
    ("2\\pi r h", "2\\pi hr"),
    ("0.\\overline{12}\\ldots", "4/33"),
]
REWARDED = [  # though wrong, where the letters are no factors
    ("act", "cat"),
    ("AB", "BA"),
    ("A-B-C", "A-C-B"),
    ("C, B, A", "A, B, C"),
]


def must_pass() -> list[Pair]:
    return distinct([*of_groups(RIGHT), *REFUSED, *((a, b) for a, b, equal, _ in CASES if equal)])


def must_fail() -> list[Pair]:
    return distinct([*of_groups(WRONG), *REWARDED, *((a, b) for a, b, equal, _ in CASES if not equal)])


def of_groups(groups: list[Group]) -> Iterator[Pair]:
    return ((predicted, gold) for _, gold, answers in groups for predicted in answers)


def distinct(pairs: list[Pair]) -> list[Pair]:
    return list(dict.fromkeys(pairs))


def math500(path: Path) -> list[Pair]:
    """The 500 golds against themselves, and each written in another way."""
    accepted = [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    return [(gold, gold) for gold in accepted] + [(rewritten(gold), gold) for gold in accepted]


def rewritten(gold: str) -> str:
    """Another way to write the same: sized brackets, display fractions, boxes of text, blanks, signs of mathematics."""
    text = gold.replace("\\left", "").replace("\\right", "").replace("\\frac", "\\dfrac").replace("\\text", "\\mbox")
    text = re.sub(r"\\dfrac\{(\d)\}\{(\d)\}", r"\\frac\1\2", text)
    text = re.sub(r"(?<=[)\]\w]) ?([+-]) ?(?=\w)", r"\\, \1 ", text)
    return text + "." if "$" in text else f"${text}$"


def judged_otherwise(pairs: list[Pair], right: bool) -> list[Pair]:
    """The pairs whose verdict is not ``right``."""
    return [(a, gold) for a, gold in pairs if math_score(a, Question("q", "?", gold)).correct != right]


def rate(name: str, failed: list[Pair], pairs: list[Pair]) -> str:
    """As docs/rewards.md has it."""
    return f"| {name} | {len(failed)} of {len(pairs)} | {len(failed) / len(pairs):.2%} |"


def main() -> None:
    right, wrong = must_pass(), must_fail()
    tables = {"wrongly refused": (right, True), "wrongly rewarded": (wrong, False)}
    if len(sys.argv) > 1:
        tables["wrongly refused, MATH500"] = (math500(Path(sys.argv[1])), True)
    for name, (pairs, verdict) in tables.items():
        failed = judged_otherwise(pairs, verdict)
        print(rate(name, failed, pairs))
        for predicted, gold in failed:
            print(f"    {predicted!r} for {gold!r}")


if __name__ == "__main__":
    main()

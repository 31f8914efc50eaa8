"""The house stays small: lines per folder, and what a key and a word cost. Budgets only ever fall, in sum."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "rapo_rllib"
SLACK = 0.95  # a budget follows what was cut: a folder takes more than this share of its own

# Lines of Python. What a finding costs is paid from its folder's budget: first ask what can go.
BUDGETS = {
    "agents": 899,
    "algorithm": 1754,
    "attention": 558,
    "batching": 1102,
    "buffer": 1690,
    "checkpoints": 394,
    "cli": 3107,
    "config": 892,
    "corpus": 541,
    "embedding": 455,
    "endpoint": 1088,
    "env_runner": 1717,
    "envs": 3121,
    "estimate": 461,
    "evaluation": 378,
    "learner": 1849,
    "milvus": 1914,
    "models": 687,
    "monitoring": 672,
    "objective": 1187,
    "protocol": 1671,
    "report": 656,
    "rewards": 2079,
    "rollout": 2945,
    "root": 683,
    "sandbox": 1573,
    "services": 286,
    "settings": 965,
    "tools": 1623,
    "traces": 880,
    "web_search": 553,
    "weights": 812,
}


def lines_by_folder() -> Counter[str]:
    """Physical lines of the package's files, by their first folder."""
    found: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        inside = file.relative_to(PACKAGE).parts
        found[inside[0] if len(inside) > 1 else "root"] += len(file.read_text(encoding="utf-8").splitlines())
    return found


def test_every_folder_has_a_budget() -> None:
    assert set(lines_by_folder()) == set(BUDGETS)


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_folder_keeps_to_its_budget(folder: str) -> None:
    lines, budget = lines_by_folder()[folder], BUDGETS[folder]
    assert lines <= budget, f"{folder} has {lines} lines: what can go from it?"
    assert lines > SLACK * budget, f"{folder} has {lines} lines: lower its budget of {budget}"


def test_a_key_is_known_in_few_files() -> None:
    """A knob costs every file that names it; temperature stands for all."""
    naming = [file for file in PACKAGE.rglob("*.py") if re.search(r"\btemperature\b", file.read_text(encoding="utf-8"))]
    assert len(naming) <= 12, sorted(str(file.relative_to(PACKAGE)) for file in naming)


def test_docstrings_say_what_is_done() -> None:
    """Their first word is a verb or a noun: a clause ("What it holds") says neither."""
    begins = re.compile(r'^\s*"""((?:What|How|Who|Of|As|Those|That|The same)\b.*)', re.MULTILINE)
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").rglob("*.py")]
    found = [(file.name, line) for file in files for line in begins.findall(file.read_text(encoding="utf-8"))]
    assert not found


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """Properties are things, and have a noun."""
    no_verb = re.compile(
        r"(The|An?|All|Every|Each|One|Its?|They|Whether|From|With|Without|Inside|In|On|By|For|After|Before|RLlib's)\b|[\W\d]"
    )
    found = [
        f"{file.name}:{function.lineno} {docstring.splitlines()[0]}"
        for file in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("property" in ast.unparse(decorator) for decorator in function.decorator_list)
        and no_verb.match(docstring := ast.get_docstring(function) or "None")
    ]
    assert not found


def test_pages_stay_short() -> None:
    """25,000 words, without the generated page of keys, on 22 pages."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in (PACKAGE.parent / "docs").glob("*.md")}
    assert len(pages) <= 22
    assert sum(len(text.split()) for name, text in pages.items() if name != "config.md") <= 25_000

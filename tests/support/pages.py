"""The pages that users read, and what stands in their fenced blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MEASURED = [REPOSITORY / "benchmarks" / page for page in ("RESULTS.md", "LEARNING.md")]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), *MEASURED]


def name(page: Path) -> str:
    """``page`` as the tests call it."""
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of ``language`` in ``page``, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def every(language: str) -> list[tuple[str, str]]:
    """``(page, block)`` for each block of ``language`` on any page."""
    return [(name(page), block) for page in PAGES for block in blocks(page, language)]


def commands() -> list[tuple[str, list[str]]]:
    """``(page, words)`` for each command in a fenced block."""
    lines = [(page, line) for page, block in every("bash") for line in block.replace("\\\n", " ").splitlines()]
    bare = [(page, re.sub(r"(^|\s)#.*", "", line)) for page, line in lines]  # shlex takes http://host/v1#model for a comment
    return [(page, words) for page, line in bare if (words := shlex.split(line))]


def commands_in_sentences() -> list[tuple[str, list[str]]]:
    """``(page, words)`` for each ``rllib`` command between backticks in running text."""
    found = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        found += [(name(page), shlex.split(text)) for text in re.findall(r"`(rllib [^`|]+)`", prose)]
    return found


def is_a_test(name: str) -> bool:
    """Whether ``file.py::function`` is a test, the file being below ``tests``."""
    file, _, function = name.partition("::")
    text = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
    return function.startswith("test_") and re.search(rf"^def {function}\(", text, flags=re.MULTILINE) is not None


def metrics_on_the_page() -> set[str]:
    """Full names of docs/metrics.md: what stands in the first column, behind the prefix in the section's heading."""
    found, prefix = set(), ""
    for line in (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            prefix = "".join(re.findall(r"`([^`]+)`", line))
        elif line.startswith("| `"):
            found |= {prefix + name for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
    return found | {f"{name}_lifetime" for name in found if "num_e" in name and "lifetime" not in name}

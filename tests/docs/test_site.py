"""The site of docs/: it builds without a warning, its navigation has every page, and the pages of the Python API are filled."""

from __future__ import annotations

import ast
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import REPOSITORY
from syntax import tree_of

MEASURED = ("RESULTS", "LEARNING", "learning_plan", "equal_traces_plan")
ADDED = {"index.md", *(f"benchmarks/{page}.md" for page in MEASURED)}  # by docs/site_pages.py
FILES = {path.stem for path in (REPOSITORY / "rapo_rllib" / "objective").glob("*.py")}
OBJECTIVE = [f"rapo_rllib.objective.{name}" for name in sorted(FILES - {"__init__", "loss_metrics"})]
API = {
    "config": ["rapo_rllib.algorithm.config.RAPOConfig", "rapo_rllib.algorithm.config.RAPOConfig.training"],
    "algorithm": ["rapo_rllib.algorithm.algorithm.RAPO", "rapo_rllib.env_runner.env_runner.RAPOEnvRunner"],
    "environments": ["rapo_rllib.envs.tool_env.ToolEnv", "rapo_rllib.envs.base.LazyQuestions.make"],
    "tools": ["rapo_rllib.tools.base.Tool.run", "rapo_rllib.tools.base.ToolLimits", "rapo_rllib.tools.base.KeepsState.session"],
    "rewards": ["rapo_rllib.rewards.score.Score"],
    "buffer": ["rapo_rllib.buffer.store.StepTraceBuffer"],
    "rollout": ["rapo_rllib.rollout.engine.Engine.submit"],
    "learner": ["rapo_rllib.learner.learner.RAPOTorchLearner"],
    "types": ["rapo_rllib.types.Trajectory", "rapo_rllib.errors.WeightSyncError"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


def leaves(node: Any) -> Iterator[str]:
    """The pages below a part of the navigation."""
    if isinstance(node, str):
        yield node
    else:
        for child in node.values() if isinstance(node, dict) else node:
            yield from leaves(child)


def navigation() -> list[str]:
    return list(leaves(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


def plain(page: Path) -> str:
    """The words of a page, without its tags and with single blanks."""
    text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))
    return re.sub(r"\s+", " ", text)


def found(name: str) -> ast.AST:
    """The class or function that the dotted ``name`` is about."""
    parts = name.split(".")
    depth = max(n for n in range(1, len(parts)) if (REPOSITORY / Path(*parts[:n])).with_suffix(".py").is_file())
    node: Any = tree_of((REPOSITORY / Path(*parts[:depth])).with_suffix(".py").read_text(encoding="utf-8"))
    for part in parts[depth:]:
        node = [child for child in members(node.body) if getattr(child, "name", None) == part][-1]
    return node


def members(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, those of both branches of an `if` too."""
    for child in body:
        yield from members([*child.body, *child.orelse]) if isinstance(child, ast.If) else (child,)


def first_words(name: str) -> str:
    """The beginning of a docstring, up to where markup may begin."""
    doc = ast.get_docstring(found(name)) or ""
    return re.split(r"[`*\n]", doc)[0].strip()


def arguments(name: str) -> list[str]:
    node = found(name)
    return [each.arg for each in node.args.args if each.arg not in ("self", "cls")] if isinstance(node, ast.FunctionDef) else []


def functions(module: str) -> list[str]:
    tree = tree_of((REPOSITORY / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return [f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


def test_the_navigation_holds_every_page_once() -> None:
    docs = REPOSITORY / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(navigation()) == sorted(pages | ADDED)


def test_each_page_is_there_and_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    filled = {entry["location"].split("#")[0] for entry in index if entry["text"]}
    pages = {page.removesuffix(".md") + ".html" for page in navigation()}
    assert {page for page in pages if not (site / page).is_file()} == set()
    assert pages - filled == set()
    assert any("retriev" in entry["text"] for entry in index)


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in API.items() for name in names])
def test_a_page_of_the_api_has_signature_and_docstring(site: Path, page: str, name: str) -> None:
    file = site / "api" / f"{page}.html"
    assert f'id="{name}"' in file.read_text(encoding="utf-8")
    words = first_words(name)
    assert len(words) > 8 and words in plain(file)
    assert all(re.search(rf"\b{argument}: ", plain(file)) for argument in arguments(name))


@pytest.mark.parametrize(
    "module", sorted(set(OBJECTIVE) - {f"rapo_rllib.objective.{name}" for name in ("__init__", "inputs", "loss_metrics")})
)
def test_the_equations_are_on_their_page(site: Path, module: str) -> None:
    file = site / "api" / "objective.html"
    source, text = file.read_text(encoding="utf-8"), plain(file)
    names = functions(module)
    assert names
    for name in names:
        assert f'id="{name}"' in source
        assert first_words(name) in text
        assert all(f"{argument}: " in text for argument in arguments(name))


def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    lost = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root of the host
            continue
        targets = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8"))
        inside = [target for target in targets if not re.match(r"[a-z]+:", target)]
        lost += [(page.name, target) for target in inside if not (page.parent / target).exists()]
    assert lost == []
    assert 'href="benchmarks/RESULTS.html"' in (site / "buffer.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="https?:[^"]*|<link[^>]*\shref="https?:[^"]*')
    assert [found for page in site.rglob("*.html") for found in loads.findall(page.read_text(encoding="utf-8"))] == []


GLUED = re.compile(r"^(?![-*|#<\s]|\d+\. |```).*\n(?:[-*|]|\d+\.) .*", re.MULTILINE)


def test_a_list_or_table_begins_behind_an_empty_line() -> None:
    """GitHub takes one that does not; the site would show it as running text."""
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), *(REPOSITORY / "benchmarks").glob("*.md")]
    texts = {page.name: re.sub(r"^```.*?^```", "```", page.read_text(), flags=re.DOTALL | re.MULTILINE) for page in pages}
    assert [(name, match[0]) for name, text in texts.items() for match in GLUED.finditer(text)] == []


def test_a_page_of_the_python_api_shows_nothing_twice() -> None:
    pages = (REPOSITORY / "docs" / "api").glob("*.md")
    shown = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("::: ")]
    assert len(shown) == len(set(shown))

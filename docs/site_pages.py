"""Make one site of docs/ and what its pages link to elsewhere in the repository (a hook of mkdocs.yml).

On GitHub a page links to any file of the repository by its relative path. The site holds docs/ alone, so here

- README.md becomes the first page;
- a Markdown file outside docs/ becomes a page at its own path;
- any other file, or folder, becomes a page that shows it;
- links are turned to where these pages are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):(?=<code>)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".cff": "yaml"}
AS_THEY_ARE = (".png", ".svg")
NOT_SEARCHED = "---\nsearch: {exclude: true}\n---\n\n"


def site_path(path: str) -> str:
    """Where the site has what the repository has at ``path``."""
    if path == "README.md":
        return "index.md"
    here = path.removeprefix("docs/")
    return here if path.endswith((".md", *AS_THEY_ARE)) else f"{here}.md"


def repository_path(page: str) -> str:
    """Where the repository has the page that the site has at ``page``."""
    if page == "index.md":
        return "README.md"
    return f"docs/{page}" if (ROOT / "docs" / page).is_file() else page


def linked(text: str, path: str) -> list[str]:
    """Files and folders of the repository that the Markdown ``text`` of the file ``path`` links to."""
    folder = posixpath.dirname(path)
    return [posixpath.normpath(posixpath.join(folder, target)) for target in LINK.findall(text)]


def shown(path: str) -> str:
    """The page of a file that is not Markdown, or of a folder: a list of its files with their first lines."""
    here = ROOT / path
    if here.is_file():
        return f"# `{path}`\n\n````{LANGUAGES.get(here.suffix, '')}\n{here.read_text(encoding='utf-8')}````\n"
    files = sorted(file for file in here.rglob("*.py") if "__pycache__" not in file.parts)
    first = {file: file.read_text(encoding="utf-8").split("\n", 1)[0].strip('"') for file in files}
    rows = [f"| `{file.relative_to(here).as_posix()}` | {line} |" for file, line in first.items() if line]
    return "\n".join([f"# `{path}/`", "", "| file | |", "| --- | --- |", *rows, ""])


def on_files(files: Files, *, config: Any) -> Files:
    """Add README and all that pages link to, and what these link to in turn."""
    waiting = ["README.md", *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not (ROOT / path).exists():  # mkdocs itself reports a link that leads nowhere
            continue
        seen.add(path)
        text = (ROOT / path).read_text(encoding="utf-8") if path.endswith(".md") else ""
        waiting += linked(text, path)
        if files.get_file_from_path(site_path(path)) is None:
            files.append(_file(config, path, text))
    return files


def _file(config: Any, path: str, text: str) -> File:
    if path.endswith(AS_THEY_ARE):
        return File.generated(config, site_path(path), abs_src_path=str(ROOT / path))
    added = File.generated(config, site_path(path), content=text or NOT_SEARCHED + shown(path))
    if not text:
        added.inclusion = added.inclusion.NOT_IN_NAV
    return added


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository into links to their pages."""
    here = page.file.src_uri
    path = repository_path(here)

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        return posixpath.relpath(site_path(target), posixpath.dirname(here) or ".")

    return LINK.sub(turned, markdown) if (ROOT / path).suffix == ".md" and (ROOT / path).is_file() else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Drop the roles of docstrings, which Markdown does not know: ``:func:`` and the like."""
    return ROLE.sub("", html)

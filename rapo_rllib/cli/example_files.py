"""Find the example jobs, and what is said of each: those of the checkout, or those that came with the wheel."""

from __future__ import annotations

import ast
import difflib
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

FOLDER = "tuned_examples"


def examples_folder() -> Path:
    """The folder with the examples.

    Raises:
        ValueError: there is none; the package was installed in a way that leaves out data files.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / FOLDER).is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / FOLDER
    try:
        installed = files("rapo_rllib") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        folder = Path(str(file.locate())).resolve().parent
        if folder.name == FOLDER and folder.is_dir():
            return folder
    raise ValueError(f"this installation has no {FOLDER}: install the wheel, or work in a checkout")


def examples() -> dict[str, Path]:
    """Every job by its name: YAML files, and Python files that have a ``config``; modules that jobs import are none."""
    found = sorted(examples_folder().iterdir())
    return {path.stem: path for path in found if path.suffix == ".yaml" or (path.suffix == ".py" and _is_job(path))}


def example(name: str) -> Path:
    """The file of an example, with or without its suffix. Raises ``ValueError`` if there is none of that name."""
    known = examples()
    stem = name.removesuffix(".yaml").removesuffix(".py")
    if stem not in known:
        near = difflib.get_close_matches(stem, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "see `rllib example list`"
        raise ValueError(f"{name}: no such example: {hint}")
    return known[stem]


def described(path: Path) -> str:
    """The first line of what an example says about itself."""
    text = path.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else text.lstrip("# ")
    return said.partition("\n")[0]


def files_of(path: Path) -> list[Path]:
    """An example and the modules beside it that it names."""
    text = path.read_text(encoding="utf-8")
    modules = [other for other in sorted(path.parent.glob("*.py")) if other != path]
    return [path, *(module for module in modules if re.search(rf"(?<![\w/]){module.stem}\.[A-Z]", text))]


def _is_job(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "config" for target in targets)

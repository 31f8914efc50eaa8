"""Find the modules of installed distributions: for each name in a folder that code finds modules in, a path.

A distribution's own list of files says which are its own, also where several share a folder, and where that folder holds all
that is installed. Where there is no list, or it holds no module (an editable install, some of Debian's), Python's import system
is asked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath


def module_paths(preload: Sequence[str]) -> dict[str, str]:
    """Names as they lie beneath a folder of ``sys.path``, and their paths, with what the distributions require (extras aside).

    Args:
        preload: names of modules.

    Raises:
        ValueError: one of them is not installed.
    """
    found: dict[str, str] = {}
    waiting: list[str] = []
    for name in {name.partition(".")[0] for name in preload} - sys.stdlib_module_names:
        owners = _distributions_of(name)
        alone = {} if owners else _imported_from(name)
        if not owners and not alone:
            raise ValueError(f"env_config.tools: python option preload: {name!r} is not installed")
        waiting, found = waiting + owners, found | alone
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # needed on other machines only
            continue
        found |= _paths(distribution)
        waiting += _requirements(distribution)
    return {name: path for name, path in found.items() if not any(str(above) in found for above in PurePosixPath(name).parents)}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(distribution: metadata.Distribution) -> Iterator[str]:
    for need in distribution.requires or []:
        if "extra" not in need.partition(";")[2]:
            yield _normal(re.split(r"[^\w.-]", need)[0])


def _distributions_of(module: str) -> list[str]:
    """Names of the distributions that a module is of; mostly it is called as its one."""
    try:
        if module in _paths(metadata.distribution(module)):
            return [_normal(module)]
    except metadata.PackageNotFoundError:
        pass
    return [_normal(name) for name in metadata.packages_distributions().get(module, ())]


def _paths(distribution: metadata.Distribution) -> dict[str, str]:
    files = [file for file in map(str, distribution.files or []) if not file.startswith("/") and ".." not in file.split("/")]
    root = str(distribution.locate_file(""))
    found = {name: os.path.join(root, name) for name in _owned(files)}
    found = {name: path for name, path in found.items() if os.path.exists(path)}
    if not any(_is_module(name) for name in found):
        names = (distribution.read_text("top_level.txt") or distribution.metadata["Name"]).split()
        for name in names:
            found |= _imported_from(name.replace("-", "_"))
    return found


def _owned(files: Sequence[str]) -> set[str]:
    """Files that lie at the top, and the topmost folders that have a file of this distribution directly in them.

    A folder that only has folders may be shared with other distributions.
    """
    with_files = {file.rpartition("/")[0] for file in files} - {""}
    owned = {file for file in files if "/" not in file}
    for folder in with_files:  # a distribution has thousands of files and some hundred folders
        parts = folder.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        owned.add(next(name for name in above if name in with_files))
    return {name for name in owned if name.partition("/")[0] != "__pycache__"}


def _is_module(name: str) -> bool:
    """Whether this is a package or a module, and not only what is known about one, or what makes one importable."""
    return not name.endswith((".dist-info", ".egg-info", ".libs", ".pth")) and not name.startswith("__editable__")


def _imported_from(name: str) -> dict[str, str]:
    """Find where Python would import a module of the top level from; nothing is imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # it is in sys.modules without a spec
        return {}
    if spec is None:
        return {}
    folders = [folder for folder in spec.submodule_search_locations or [] if os.path.isdir(folder)]
    if folders:
        return {name: folders[0]}
    return {Path(spec.origin).name: spec.origin} if spec.has_location and spec.origin else {}

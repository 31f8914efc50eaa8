"""List the files that sandboxed code can read: the standard library, shared libraries, and the packages that it may import.

It is an allow-list, exact to the file or package, since files of rapo_rllib, of the job or of other packages may lie in the
same folders. Code finds modules in a folder of links (:attr:`Files.modules`), so it need not list the folders they lie in.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_TABLES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
_OURS = Path(__file__).resolve().parents[1]


class Files(NamedTuple):
    """The files that code sees; all paths are absolute."""

    readable: list[str]  # files and folders that it can open, none inside another
    shown: list[str]  # what a new root is made of: coarser than ``readable``, and without ``hidden``
    hidden: list[str]  # folders beneath ``shown`` that empty ones cover, in which some of ``shown`` may lie again
    modules: dict[str, str]  # the folder of links: their names in it, and the paths they lead to
    path: list[str]  # further entries of ``sys.path``


def visible_files(preload: Sequence[str] = ()) -> Files:
    """List the files that code can read if it may import ``preload``.

    Args:
        preload: modules; their distributions, and those that these require, can be read, too.

    Raises:
        ValueError: one of ``preload`` is not installed, or this package would be readable.
    """
    modules = module_paths(preload)
    _refuse_ours(modules)
    folder = os.path.realpath(os.path.dirname(os.__file__))
    stdlib = {name: os.path.join(folder, name) for name in os.listdir(folder) if _is_standard(name)}
    zipped = os.path.join(os.path.dirname(folder), f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    others = _existing((zipped, sysconfig.get_config_var("DESTSHARED") or "", os.path.join(folder, "lib-dynload")))
    fixed = [*others, *_libraries(), *filter(os.path.exists, (*_DEVICES, *_TABLES))]
    hidden = [
        entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False) and not _is_standard(entry.name)
    ]
    return Files(
        readable=_outermost([*stdlib.values(), *fixed, *modules.values()]),
        shown=sorted({folder, *fixed, *modules.values()}),
        hidden=sorted(hidden),
        modules={**modules, **stdlib},
        path=others,
    )


def _is_standard(name: str) -> bool:
    """Check whether an entry of the standard library's folder belongs to it: packages may be installed there, too."""
    stem = name.partition(".")[0]
    return stem in sys.stdlib_module_names or name in ("__pycache__", "lib-dynload") or stem.startswith("_sysconfigdata")


def _libraries() -> list[str]:
    """List shared libraries: files in the usual folders and the interpreter's, and Debian's folders per architecture."""
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    folders = {*_LIBRARIES, *(os.path.join(prefix, name) for prefix in prefixes for name in ("lib", sys.platlibdir))}
    found = []
    for folder in filter(os.path.isdir, folders):
        for entry in os.scandir(folder):
            is_library = ".so" in entry.name and entry.is_file()
            if is_library or ("-linux-" in entry.name and folder in _LIBRARIES and entry.is_dir()):
                found.append(entry.path)
    return found


def _refuse_ours(modules: dict[str, str]) -> None:
    """Refuse modules that would make this package readable: its questions carry their answers.

    Raises:
        ValueError: a module would.
    """
    for name, path in modules.items():
        real = Path(path).resolve()
        if _OURS.is_relative_to(real) or real.is_relative_to(_OURS):
            raise ValueError(
                f"env_config.tools: python option preload: {name!r} ({path}) would let code read rapo_rllib, whose "
                "questions carry their answers; leave it out"
            )


def _existing(paths: Iterable[str]) -> list[str]:
    """List the paths that exist, by their real paths, each once."""
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.exists(path)))


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the real paths, sorted, without those that lie beneath another."""
    kept: list[str] = []
    for path in sorted(map(os.path.realpath, paths), key=lambda path: path.split("/")):
        if not kept or (path != kept[-1] and not path.startswith(f"{kept[-1]}/")):
            kept.append(path)
    return kept


def module_paths(preload: Sequence[str]) -> dict[str, str]:
    """Find the paths of modules and of what their distributions require (without extras), by name beneath ``sys.path``.

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
    """List the distributions that a module belongs to; mostly it is one, with the name of the module."""
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
    """List files at the top, and the topmost folders that have a file of this distribution directly in them.

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
    """Check whether this is a package or module, and not its metadata, its shared libraries or its path file."""
    return not name.endswith((".dist-info", ".egg-info", ".libs", ".pth")) and not name.startswith("__editable__")


def _imported_from(name: str) -> dict[str, str]:
    """Find the path that Python would import a top-level module from, without importing it."""
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

"""Which files sandboxed code can read: the interpreter, installed packages, shared libraries. Nobody's data."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def package_folders() -> list[str]:
    """Where installed packages lie, as this process finds them."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and Path(path).is_dir()]


def readable_paths(packages: Sequence[str] | None) -> list[str]:
    """Files and folders that sandboxed code may read, none inside another.

    Args:
        packages: names of distributions, which bring what they require; None: all that are installed.
    """
    own = {os.path.join(prefix, "lib") for prefix in (sys.base_prefix, sys.base_exec_prefix)}  # the standard library is there
    found = [*own, os.path.join(sys.base_exec_prefix, sys.platlibdir), *_LIBRARIES, *_DEVICES]
    found += package_folders() if packages is None else distribution_paths(packages)
    return _outermost(path for path in found if os.path.exists(path))


def _outermost(paths: Iterable[str]) -> list[str]:
    """Sorted, without those that lie beneath another."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(Path(path).is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def distribution_paths(names: Sequence[str]) -> list[str]:
    """The top-level files and folders of distributions and of those that they require (extras aside).

    Raises:
        ValueError: one of ``names`` is not installed.
    """
    waiting, seen, paths = list(names), set[str](), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in {re.sub(r"[-_.]+", "-", given).lower() for given in names}:
                raise ValueError(f"env_config.tools: python option packages: {name!r} is not installed") from None
            continue  # needed on other machines only
        root = found.locate_file("")
        tops = {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}
        paths |= {str(Path(str(root), top)) for top in tops}
        waiting += [re.split(r"[^\w.-]", need)[0] for need in found.requires or [] if "extra" not in need.partition(";")[2]]
    return sorted(paths)

"""The folder in which code finds modules: links to them, so that nobody need list the folders where they lie."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

FOLDER = "/modules"  # in a root of its own


def link(folder: str, modules: Mapping[str, str]) -> None:
    """Fill the folder, which is made.

    Args:
        folder: does not exist.
        modules: names in it, and where they lead.
    """
    os.mkdir(folder, 0o755)
    for name, path in modules.items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(path, place)


def find_in(folder: str, others: Sequence[str]) -> None:
    """Import from there, and nowhere else but ``others``, from now on."""
    sys.path[:] = [folder, *others]
    sys.path_importer_cache.clear()

"""Makes ``RAPO`` and the environments known by name: to YAML, to ``Tuner("RAPO")`` and to ``get_trainable_cls``.

RLlib registers everything in its table of algorithms when Tune first meets a name that it does not know. Importing RLlib takes
seconds, so ``import rapo_rllib`` does not: it adds RAPO to the table when the table is loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_TABLE = "ray.rllib.algorithms.registry"


def register() -> None:
    """Register now if RLlib is loaded already, else as soon as it is."""
    import rapo_rllib.envs  # noqa: F401  (registers the gymnasium ids)

    table = sys.modules.get(_TABLE)
    if table is not None and hasattr(table, "ALGORITHMS"):
        _add_to(table)
        _register_trainable()
    elif not any(isinstance(finder, _TableFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TableFinder())


def _add_to(table: ModuleType) -> None:
    table.ALGORITHMS["RAPO"] = _rapo


def _rapo() -> tuple[type, Any]:
    from rapo_rllib.algorithm.algorithm import RAPO

    return RAPO, RAPO.get_default_config()


def _register_trainable() -> None:
    from ray.tune.registry import register_trainable

    register_trainable("RAPO", _rapo()[0])


class _TableFinder(importlib.abc.MetaPathFinder):
    """Finds RLlib's table of algorithms as usual, and adds RAPO once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only for the table; every other module is left to the usual finders."""
        if fullname != _TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _TableLoader(spec.loader)
        return spec


class _TableLoader(importlib.abc.Loader):
    """Loads the table, then adds RAPO."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as the loader behind does."""
        module: ModuleType | None = self._original.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and add a row to its table."""
        self._original.exec_module(module)
        _add_to(module)

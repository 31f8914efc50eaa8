"""Registration of ``RAPO`` and the environments: for YAML, ``Tuner("RAPO")``, ``get_trainable_cls``, ``gymnasium.make``.

When Tune first meets an unknown name, RLlib registers all algorithms of its table. Importing RLlib takes seconds, and gymnasium
may not be there, so ``import rapo_rllib`` imports neither: it adds its entries to each library's table once that is loaded.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

from rapo_rllib.envs import ENVIRONMENTS


def register() -> None:
    """Register the algorithm and the environments, each now if its library (RLlib, gymnasium) is loaded, else once it is."""
    for name, add in _TABLES.items():
        if name in sys.modules:
            add(importlib.import_module(name))  # another thread may still be importing it
        else:
            sys.meta_path.insert(0, _TableFinder(name, add))
    if _ALGORITHMS in sys.modules:
        from ray.tune.registry import register_trainable

        register_trainable("RAPO", _rapo()[0])


def _add_algorithm(table: Any) -> None:
    table.ALGORITHMS["RAPO"] = _rapo


def _add_environments(table: Any) -> None:
    for name, entry_point in ENVIRONMENTS.items():
        if name not in table.registry:
            table.register(name, entry_point=entry_point, disable_env_checker=True)


_ALGORITHMS = "ray.rllib.algorithms.registry"
_TABLES: dict[str, Callable[[Any], None]] = {_ALGORITHMS: _add_algorithm, "gymnasium.envs.registration": _add_environments}


def _rapo() -> tuple[type, Any]:
    from rapo_rllib.algorithm.algorithm import RAPO

    return RAPO, RAPO.get_default_config()


class _TableFinder(importlib.abc.MetaPathFinder):
    """Finder of the module ``name`` that calls ``add`` with the module once it is loaded."""

    def __init__(self, name: str, add: Callable[[Any], None]) -> None:
        self._name, self._add = name, add

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the one module ``name``; other modules are left to the usual finders."""
        if fullname != self._name:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if not isinstance(finder, _TableFinder))
        spec: Any = next(filter(None, others), None)
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_add(module: ModuleType) -> None:
                run(module)
                self._add(module)
                with suppress(ValueError):  # removed already, by another spec that was loaded, too
                    sys.meta_path.remove(self)

            spec.loader = SimpleNamespace(create_module=spec.loader.create_module, exec_module=run_and_add)
        return spec

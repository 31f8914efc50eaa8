"""Makes ``RAPO`` and the environments known by name: to YAML, ``Tuner("RAPO")``, ``get_trainable_cls``, ``gymnasium.make``.

RLlib registers everything in its table of algorithms when Tune first meets a name that it does not know. Importing RLlib takes
seconds, and gymnasium may not be there, so ``import rapo_rllib`` imports neither: it adds to their tables when they are loaded.
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
    """Register now where RLlib or gymnasium is loaded already, else as soon as it is."""
    for name, add in _TABLES.items():
        if name in sys.modules:
            add(importlib.import_module(name))  # which another thread may still be at
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
    """Finds the module ``name`` as usual, and has ``add`` called with it once it is loaded."""

    def __init__(self, name: str, add: Callable[[Any], None]) -> None:
        self._name, self._add = name, add

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find this module alone; every other one is left to the usual finders."""
        if fullname != self._name:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if not isinstance(finder, _TableFinder))
        spec: Any = next(filter(None, others), None)
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_add(module: ModuleType) -> None:
                run(module)
                self._add(module)
                with suppress(ValueError):  # of another look that was loaded, too
                    sys.meta_path.remove(self)

            spec.loader = SimpleNamespace(create_module=spec.loader.create_module, exec_module=run_and_add)
        return spec

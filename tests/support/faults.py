"""Faults on demand, in the processes of env runners: a file in ``env_config["folder"]`` asks for one.

``kill`` ends a process while it samples, ``kill_learner_0`` that of the first learner in the middle of an update, in ``engine``
vLLM fails there, ``load`` is an error while new weights are loaded, and with ``miss_1`` the first env runner's engine
says that it has loaded them, and keeps the old ones.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from letters_env import Letters

from rapo_rllib.env_runner.env_runner import RAPOEnvRunner
from rapo_rllib.learner.learner import RAPOTorchLearner

_seen = 0  # calls of this process since a fault was asked for


def now(fault: Path) -> bool:
    """True once, in one process, at its third call since ``fault`` was written: leaves ``fault.done`` with the process id."""
    global _seen
    _seen = _seen + 1 if fault.exists() else 0
    return _seen == 3 and taken(fault)


def taken(fault: Path) -> bool:
    """True for the first that asks after ``fault`` was written: leaves ``fault.done`` with the process id."""
    try:
        fault.rename(fault.with_suffix(".done"))
    except FileNotFoundError:  # another process was first
        return False
    fault.with_suffix(".done").write_text(str(os.getpid()))
    return True


class FaultyLetters(Letters):
    """Writes every start of a trajectory as ``process id, seed`` to ``asked``; ``kill -9`` to its process if asked for."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(env_config)
        self.folder = Path(env_config["folder"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        with open(self.folder / "asked", "a") as file:
            file.write(f"{os.getpid()} {seed}\n")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if now(self.folder / "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class FaultyEngineRunner(RAPOEnvRunner):
    """A step of its vLLM raises if asked for, in the middle of sampling, or loading fails."""

    def _make_engine(self) -> Any:
        engine = super()._make_engine()
        step, load = engine._engine.step, engine.weights.load
        folder = Path(self.config.env_config["folder"])

        def faulty_step() -> Any:
            if now(folder / "engine"):
                assert engine.num_unfinished > 0
                raise RuntimeError("an illegal memory access was encountered")
            return step()

        def faulty_load(weights: Any, version: int) -> None:
            if taken(folder / "load"):
                raise OSError("no memory left to map")
            if (folder / f"miss_{self.worker_index}").exists():
                engine.weights.version = version
                return
            load(weights, version)

        engine._engine.step, engine.weights.load = faulty_step, faulty_load
        return engine


class FaultyLearner(RAPOTorchLearner):
    """Before a pass, ``kill -9`` to its process if asked for: others wait for it in the sum of gradients."""

    def _micro_batch_loss(self, *arguments: Any) -> Any:
        if taken(Path(self.config.env_config["folder"]) / f"kill_learner_{self._learner_index}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._micro_batch_loss(*arguments)

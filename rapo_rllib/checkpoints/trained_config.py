"""The config that a checkpoint was trained with, without its weights: of RAPO and of RLlib's other algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_ARGUMENTS = "class_and_ctor_args.pkl"


def is_rllib_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` holds what ``Algorithm.from_checkpoint`` reads."""
    return (folder / "rllib_checkpoint.json").is_file() and (folder / _ARGUMENTS).is_file()


def trained_algorithm(folder: Path) -> tuple[Any, Any]:
    """Class and ``AlgorithmConfig`` of a checkpoint. It is a pickle: read only checkpoints that you trust.

    Raises:
        ValueError: the checkpoint holds neither, or cannot be read here.
    """
    from ray import cloudpickle

    try:
        saved = cloudpickle.loads((folder / _ARGUMENTS).read_bytes())
        ((state,), _) = saved["ctor_args_and_kwargs"]
        return saved["class"], state["class"].from_state(state)
    except ImportError as error:
        raise ValueError(
            f"{folder}: {_ARGUMENTS} cannot be read: {error}. Run the command in the folder of the job, where its modules are "
            "(for a checkpoint of RAPO, --job JOB does as well)"
        ) from error
    except Exception as error:  # of whatever the config holds: a class that is not importable here, another Ray
        raise ValueError(f"{folder}: {_ARGUMENTS} cannot be read: {type(error).__name__}: {error}") from error

"""``loggers`` of a job to callbacks of Tune's.

loggers:
  - {type: mlflow, tracking_uri: "http://host:5000", experiment_name: maths}
  - {type: package.module.Callback, its_argument: 1}
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from typing import Any

from ray.tune import Callback

# name in YAML -> where it is, and the package that it needs
_NAMED = {
    "wandb": ("rapo_rllib.loggers.wandb_logger.WandbLogger", "wandb"),
    "mlflow": ("rapo_rllib.loggers.mlflow_logger.MLflowLogger", "mlflow"),
}


def made_loggers(given: Any) -> list[Callback]:
    """The callbacks that ``given`` describes.

    Args:
        given: a list. Each item is a name (``wandb``, ``mlflow``), the import path of a ``ray.tune.Callback``, a mapping with
            such a ``type`` and its keyword arguments, or, from Python, a callback.

    Raises:
        ValueError: naming the item, and what to do.
    """
    if not isinstance(given, list):
        raise ValueError(f"loggers = {given!r}: must be a list, for example [{{type: wandb, project: maths}}]")
    return [item if isinstance(item, Callback) else _made(item, f"loggers[{index}]") for index, item in enumerate(given)]


def _made(item: Any, where: str) -> Callback:
    arguments = {"type": item} if isinstance(item, str) else dict(item) if isinstance(item, dict) else {}
    name = arguments.pop("type", None)
    if not isinstance(name, str):
        raise ValueError(
            f"{where} = {item!r}: must name a type: {', '.join(_NAMED)}, or package.module.Class of a Tune callback"
        )
    path, package = _NAMED.get(name, (name, ""))
    if package and importlib.util.find_spec(package) is None:
        raise ValueError(f"{where}: {name} needs the package {package}: run `pip install 'rapo_rllib[loggers]'`")
    if "." not in path:
        near = difflib.get_close_matches(name, _NAMED, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_NAMED)}, and package.module.Class"
        raise ValueError(f"{where}.type = {name!r}: {hint}")
    made = _class(path, where)
    try:
        inspect.signature(made).bind(**arguments)
        callback: Callback = made(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} ({name}): {error}") from error
    return callback


def _class(path: str, where: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{where}.type = {path!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Callback)):
        raise ValueError(f"{where}.type = {path!r}: is no ray.tune.Callback")
    return found

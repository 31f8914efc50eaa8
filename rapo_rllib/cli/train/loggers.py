"""Make callbacks for Tune of the ``loggers`` of a job.

loggers:
  - {type: mlflow, tracking_uri: "http://host:5000", experiment_name: maths}
  - {type: package.module.Callback, its_argument: 1}
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

from ray.tune import Callback

from rapo_rllib.services.credentials import check_address, check_no_secret

_NAMED = ("wandb", "mlflow")  # Tune's own loggers; each needs the package of the same name
_MLFLOW = "ray.air.integrations.mlflow.MLflowLoggerCallback"


def made_loggers(given: Any) -> list[Callback]:
    """Make the callbacks that ``given`` describes.

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
    if not isinstance(name, str) or (name not in _NAMED and "." not in name):
        raise ValueError(f"{where}.type = {name!r}: must be one of {', '.join(_NAMED)}, package.module.Class")
    if name in _NAMED and importlib.util.find_spec(name) is None:
        raise ValueError(f"{where}: {name} needs the package {name}: run `pip install 'rapo_rllib[loggers]'`")
    check_no_secret(arguments, name, "set WANDB_API_KEY, or name a file by api_key_file")
    check_address(arguments.get("tracking_uri"), "tracking_uri", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
    if name == "wandb":
        arguments["dir"] = str(Path(arguments.get("dir", ".")).absolute())  # in Tune's folder the end of a run would be missing
        if "mode" in arguments:
            os.environ.setdefault("WANDB_MODE", str(arguments["mode"]))  # tells Tune's logger whether it needs a key
    made = _wandb() if name == "wandb" else imported(_MLFLOW if name == "mlflow" else name, f"{where}.type")
    if not (isinstance(made, type) and issubclass(made, Callback)):
        raise ValueError(f"{where}.type = {name!r}: is no ray.tune.Callback")
    try:
        inspect.signature(made).bind(**arguments)
        callback: Callback = made(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where} ({name}): {error}") from error
    return callback


def _wandb() -> type[Callback]:
    """Derive a logger from Tune's that waits for W&B's process, which still writes after ``finish`` and dies with Tune's."""
    from ray.air.integrations.wandb import WandbLoggerCallback, _WandbLoggingActor

    class Waiting(_WandbLoggingActor):
        def run(self) -> None:
            super().run()
            self._wandb.teardown()

    class WandbLogger(WandbLoggerCallback):
        _logger_actor_cls = Waiting

    return WandbLogger


def imported(path: str, key: str) -> Any:
    """Import ``package.module.Name``. Raises ``ValueError`` with the user's ``key`` if there is no such object."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key} = {path!r}: {error}") from error

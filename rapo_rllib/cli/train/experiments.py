"""A YAML or Python file and the command line's options to experiment specs; ``checks.py`` then checks them."""

from __future__ import annotations

import runpy
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.values import merge, set_dotted, with_searches, yaml_file
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.validation import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

# What a job holds beside `run`, `env` and `config`; `--set` changes these, too.
_BESIDE_CONFIG = (
    *("stop", "num_samples", "scheduler", "checkpoint_config", "storage_path", "restore"),
    *("max_failures", "loggers"),
)


@dataclass
class ExperimentSpec:
    """One experiment, as file and command line want it."""

    name: str
    algorithm: Any  # name, or class; checks.py makes it a class
    config: dict[str, Any]  # may hold grid_search, and what Tune samples from
    base_config: AlgorithmConfig | None = None  # of a Python file
    stop: dict[str, float] = field(default_factory=dict)
    num_samples: int = 1
    scheduler: dict[str, Any] = field(default_factory=dict)  # type and arguments; empty: Tune's own choice
    checkpoint_config: dict[str, Any] = field(default_factory=dict)
    storage_path: str | None = None
    restore: str | None = None
    max_failures: int = 0
    loggers: list[Any] = field(default_factory=list)  # as in the file; checks.py makes them Tune callbacks

    @property
    def algorithm_name(self) -> str:
        """RLlib's name of the algorithm."""
        return self.algorithm if isinstance(self.algorithm, str) else self.algorithm.__name__


def read_experiments(path: Path, options: RunOptions) -> list[ExperimentSpec]:
    """Read the experiments of ``path``, with what the command line changes.

    Raises:
        ValueError: naming the experiment, the key and what to do.
    """
    if not path.is_file():
        raise ValueError("no such file")
    if path.suffix in (".yaml", ".yml"):
        content = yaml_file(path)
        if not isinstance(content, dict) or not content:
            raise ValueError("must hold at least one experiment: a name, and below it run, env, stop, config")
        return [_spec(str(name), body, options) for name, body in content.items()]
    if path.suffix != ".py":
        raise ValueError(f"cannot train from a {path.suffix or 'file without a suffix'}: give a .yaml, .yml or .py file")
    body, config = _from_python(path)
    return [_spec(path.stem, body, options, config)]


def _spec(name: str, body: Any, options: RunOptions, base: AlgorithmConfig | None = None) -> ExperimentSpec:
    try:
        if not isinstance(body, dict):
            raise ValueError("must be a mapping with run, env, stop, config")
        refuse_unknown_keys([str(key) for key in body], ("run", "env", "config", *_BESIDE_CONFIG))
        if base is None and not isinstance(body.get("run"), str):
            raise ValueError("run is missing: name the algorithm, for example run: RAPO")
        body = _overridden(body, options)
        restore, storage = body.get("restore"), body.get("storage_path")
        if options.resume and restore:
            raise ValueError(f"--resume continues a whole run, restore = {restore!r} one checkpoint: leave one out")
        if options.resume and "://" in (storage or ""):
            raise ValueError(f"--resume: storage_path = {storage!r} is not on this machine; use --restore CHECKPOINT")
        return ExperimentSpec(
            name=name,
            algorithm=body["run"],
            config=with_searches(body["config"], "config"),
            base_config=base,
            stop=_criteria(_mapping(body, "stop")),
            num_samples=_number(body, "num_samples", 1, low=1),
            scheduler=_mapping(body, "scheduler"),
            checkpoint_config=_checkpoint_config(body),
            storage_path=storage,
            restore=restore,
            max_failures=_number(body, "max_failures", 0, low=-1),
            loggers=body.get("loggers") or [],
        )
    except ValueError as error:
        raise ValueError(f"experiment {name!r}: {error}") from error


def _overridden(body: dict[str, Any], options: RunOptions) -> dict[str, Any]:
    """Put options over a job: whole entries in place of its own, ``--set`` into its ``config`` or beside it."""
    given: dict[str, Any] = {}
    for key, value in options.overrides:
        set_dotted(given, key, value)
    config = _stored(_mapping(body, "config"))
    beside = {key: given.pop(key) for key in _BESIDE_CONFIG if key in given}
    if "env" in body:
        config["env"] = body["env"]
    merge(config, _stored(given))
    replaced = {key: value for key, value in options.replaced.items() if value is not None}
    changed = {**body, **replaced, "config": config}
    merge(changed, beside)
    return changed


def _stored(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` as RLlib stores it, which has ``model_config`` in a private attribute."""
    return {"_model_config" if key == "model_config" else key: value for key, value in config.items()}


def _criteria(stop: dict[str, Any]) -> dict[str, float]:
    """Stop criteria, nested results as ``a/b``. Raises ``ValueError`` where a limit is not a number."""
    found = flattened(stop)
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"stop.{key} = {value!r}: must be a number, reached when the result is at least that")
    return found


def _checkpoint_config(body: dict[str, Any]) -> dict[str, Any]:
    """For Tune, which would take ``min-`` for the beginning of a metric's name, and keep the highest."""
    given = _mapping(body, "checkpoint_config")
    attribute = str(given.get("checkpoint_score_attribute", ""))
    if attribute.startswith("min-"):
        raise ValueError(
            f"checkpoint_config.checkpoint_score_attribute = {attribute!r}: write checkpoint_score_attribute: "
            f"{attribute.removeprefix('min-')} and checkpoint_score_order: min"
        )
    return {"checkpoint_at_end": True, **given}


def _mapping(body: dict[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{key} = {value!r}: must be a mapping")
    return value


def _number(body: dict[str, Any], key: str, default: int, low: int) -> int:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{key} = {value!r}: must be a whole number, at least {low}")
    return value


def _from_python(path: Path) -> tuple[dict[str, Any], AlgorithmConfig]:
    """Run a Python file: what it says, as a YAML job has it, and its config."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    try:
        namespace = runpy.run_path(str(path))
    except Exception as error:
        line = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(path)), None)
        where = f"line {line}: " if line else ""
        raise ValueError(f"{where}{type(error).__name__}: {error}") from error
    config = namespace.get("config")
    if not isinstance(config, AlgorithmConfig):
        raise ValueError("must define `config`, an AlgorithmConfig (and optionally `stop`, a dict, and `loggers`, a list)")
    if config.algo_class is None:
        raise ValueError("`config` has no algorithm: use PPOConfig(), RAPOConfig(), ...")
    given = namespace.get("stop") or {}
    if not isinstance(given, dict):
        raise ValueError(f"`stop` = {given!r}: must be a dict such as {{'training_iteration': 10}}")
    values = config.to_dict()
    if "language_model" in values:  # RAPO's `model`; where RLlib's dict of that name stays, --set would change that one
        values["model"] = values.pop("language_model")
    return {"run": config.algo_class, "config": values, "stop": given, "loggers": namespace.get("loggers")}, config

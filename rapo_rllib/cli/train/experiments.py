"""A YAML or Python file and the command line's options to experiment specs; ``checks.py`` then checks them."""

from __future__ import annotations

import runpy
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.dotted_keys import merge, set_dotted
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.schedulers import make_scheduler
from rapo_rllib.cli.train.search_space import with_searches
from rapo_rllib.cli.yaml_text import yaml_file
from rapo_rllib.monitoring.metrics_flat import flattened

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

_KEYS = (
    "run",
    "env",
    "stop",
    "config",
    "num_samples",
    "scheduler",
    "checkpoint_config",
    "storage_path",
    "restore",
    "max_failures",
    "time_budget_s",
    "loggers",
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
    time_budget_s: float | None = None
    loggers: list[Any] = field(default_factory=list)  # as in the file; checks.py makes them Tune callbacks

    @property
    def algorithm_name(self) -> str:
        """As RLlib calls it."""
        return self.algorithm if isinstance(self.algorithm, str) else self.algorithm.__name__


def read_experiments(path: Path, options: RunOptions) -> list[ExperimentSpec]:
    """The experiments of ``path``, with what the command line changes.

    Raises:
        ValueError: naming the experiment, the key and what to do.
    """
    if not path.is_file():
        raise ValueError("no such file")
    if path.suffix in (".yaml", ".yml"):
        specs = _from_yaml(path)
    elif path.suffix == ".py":
        specs = [_from_python(path)]
    else:
        raise ValueError(f"cannot train from a {path.suffix or 'file without a suffix'}: give a .yaml, .yml or .py file")
    for spec in specs:
        _apply(spec, options)
    return specs


def named_experiment(algorithm: str, config: dict[str, Any], options: RunOptions) -> ExperimentSpec:
    """The experiment of ``rllib train --algo``. Raises ``ValueError`` as :func:`read_experiments`."""
    spec = _spec(f"{algorithm}-{options.env}".replace("/", "-"), {"run": algorithm, "config": config})
    _apply(spec, options)
    return spec


def _from_yaml(path: Path) -> list[ExperimentSpec]:
    content = yaml_file(path)
    if not isinstance(content, dict) or not content:
        raise ValueError("must hold at least one experiment: a name, and below it run, env, stop, config")
    specs = []
    for name, body in content.items():
        try:
            specs.append(_spec(str(name), body))
        except ValueError as error:
            raise ValueError(f"experiment {str(name)!r}: {error}") from error
    return specs


def _spec(name: str, body: Any) -> ExperimentSpec:
    from rapo_rllib.validation import refuse_unknown_keys

    if not isinstance(body, dict):
        raise ValueError("must be a mapping with run, env, stop, config")
    refuse_unknown_keys([str(key) for key in body], _KEYS)
    if not isinstance(body.get("run"), str):
        raise ValueError("run is missing: name the algorithm, for example run: RAPO")
    config = _stored(_mapping(body, "config"))
    if "env" in body:
        config["env"] = body["env"]
    config = with_searches(config, "config")
    return ExperimentSpec(
        name=name,
        algorithm=body["run"],
        config=config,
        stop=_criteria(_mapping(body, "stop")),
        num_samples=_whole_number(body, "num_samples", 1),
        scheduler=dict(_mapping(body, "scheduler")),
        checkpoint_config=dict(_mapping(body, "checkpoint_config")),
        storage_path=body.get("storage_path"),
        restore=body.get("restore"),
        max_failures=_whole_number(body, "max_failures", 0),
        time_budget_s=body.get("time_budget_s"),
        loggers=body.get("loggers") or [],
    )


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


def _mapping(body: dict[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{key} = {value!r}: must be a mapping")
    return value


def _whole_number(body: dict[str, Any], key: str, default: int) -> int:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} = {value!r}: must be a whole number")
    return value


def _from_python(path: Path) -> ExperimentSpec:
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
    return ExperimentSpec(
        name=path.stem,
        algorithm=config.algo_class,
        config=values,
        base_config=config,
        stop=_criteria(given),
        loggers=namespace.get("loggers") or [],
    )


def _apply(spec: ExperimentSpec, options: RunOptions) -> None:
    """The command line wins over the file."""
    if options.stop is not None:
        spec.stop = _criteria(options.stop)
    _override(spec, options)
    spec.checkpoint_config = _checkpoint_config(spec, options)
    spec.storage_path = options.storage_path or spec.storage_path
    spec.restore = options.restore or spec.restore
    if options.resume and spec.restore:
        raise ValueError(f"--resume continues a whole run, restore = {spec.restore!r} one checkpoint: leave one out")
    if options.resume and "://" in (spec.storage_path or ""):
        raise ValueError(f"--resume: storage_path = {spec.storage_path!r} is not on this machine; use --restore CHECKPOINT")
    spec.num_samples = spec.num_samples if options.num_samples is None else options.num_samples
    _apply_scheduler(spec, options)


def _apply_scheduler(spec: ExperimentSpec, options: RunOptions) -> None:
    if options.scheduler is not None:
        given = {**(options.scheduler_config or {}), "type": options.scheduler}
        try:
            make_scheduler(given)
        except ValueError as error:
            raise ValueError(f"--scheduler {options.scheduler}: {error}") from error
        spec.scheduler = given
    elif options.scheduler_config is not None:
        if not spec.scheduler:
            raise ValueError("--scheduler-config: there is no scheduler; name one by --scheduler")
        spec.scheduler = {**spec.scheduler, **options.scheduler_config}


def _override(spec: ExperimentSpec, options: RunOptions) -> None:
    given: dict[str, Any] = {"env": options.env, "log_level": options.log_level}
    given = {key: value for key, value in given.items() if value is not None}
    for key, value in options.overrides:
        set_dotted(given, key, value)
    merge(spec.config, with_searches(_stored(given), "config"))


def _checkpoint_config(spec: ExperimentSpec, options: RunOptions) -> dict[str, Any]:
    given = {
        "checkpoint_frequency": options.checkpoint_frequency,
        "checkpoint_at_end": options.checkpoint_at_end,
        "num_to_keep": options.num_to_keep,
        "checkpoint_score_attribute": options.checkpoint_score_attribute,
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    merged = {"checkpoint_at_end": True, **spec.checkpoint_config, **chosen}
    if (attribute := merged.get("checkpoint_score_attribute")) is not None:
        lowest = attribute.startswith("min-")
        merged["checkpoint_score_attribute"] = attribute.removeprefix("min-")
        merged["checkpoint_score_order"] = "min" if lowest else merged.get("checkpoint_score_order", "max")
    return merged

"""Make experiment specs of a YAML or Python file and the command line's options; ``checks.py`` then checks them."""

from __future__ import annotations

import runpy
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.values import merge, set_dotted, with_searches, yaml_file
from rapo_rllib.monitoring.metrics_flat import flattened
from rapo_rllib.settings.knobs import Knobs, knob, knobs
from rapo_rllib.validation import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


@dataclass
class ExperimentSpec(Knobs):
    """One experiment, as file and command line describe it."""

    name: str = ""
    algorithm: Any = None  # name, or class; checks.py makes it a class
    config: dict[str, Any] = field(default_factory=dict)  # may hold grid_search, and what Tune samples from
    base_config: Any = None  # an ``AlgorithmConfig``, of a Python file
    stop: dict = knob(dict, "numbers of a result, of which the first that is reached ends a trial")
    num_samples: int = knob(1, "trials per grid point", at_least=1)
    scheduler: dict = knob(dict, "type and arguments; empty: Tune's own choice")
    checkpoint_config: dict = knob(dict, "arguments of Tune's")
    storage_path: str | None = knob(None, "where results go")
    restore: str | None = knob(None, "checkpoint to begin with")
    max_failures: int = knob(0, "how often a trial that fails is begun again; -1: without end", at_least=-1)
    loggers: Any = knob(list, "as in the file; checks.py makes them Tune callbacks")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stop = _criteria(self.stop)
        self.checkpoint_config = _checkpoint_config(self.checkpoint_config)

    @property
    def algorithm_name(self) -> str:
        """RLlib's name of the algorithm."""
        return self.algorithm if isinstance(self.algorithm, str) else self.algorithm.__name__


_BESIDE_CONFIG = tuple(knobs(ExperimentSpec))  # what a job holds beside `run`, `env` and `config`; `--set` changes these, too


def read_experiments(path: Path, options: RunOptions) -> list[ExperimentSpec]:
    """Read the experiments of the file ``path``, with the changes of the command line.

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
        beside = {key: body[key] for key in _BESIDE_CONFIG if body.get(key) is not None}
        spec = ExperimentSpec(name, body["run"], with_searches(body["config"], "config"), base, **beside)
        if options.resume and spec.restore:
            raise ValueError(f"--resume continues a whole run, restore = {spec.restore!r} one checkpoint: leave one out")
        if options.resume and "://" in (spec.storage_path or ""):
            raise ValueError(f"--resume: storage_path = {spec.storage_path!r} is not on this machine; use --restore CHECKPOINT")
        return spec
    except ValueError as error:
        raise ValueError(f"experiment {name!r}: {error}") from error


def _overridden(body: dict[str, Any], options: RunOptions) -> dict[str, Any]:
    """Apply options to a job: some replace whole entries, ``--set`` changes keys inside ``config`` or beside it."""
    given: dict[str, Any] = {}
    for key, value in options.overrides:
        set_dotted(given, key, value)
    if not isinstance(config := body.get("config") or {}, dict):
        raise ValueError(f"config = {config!r}: must be a mapping")
    config = _stored(config)
    beside = {key: given.pop(key) for key in _BESIDE_CONFIG if key in given}
    if "env" in body:
        config["env"] = body["env"]
    merge(config, _stored(given))
    replaced = {key: value for key, value in options.replaced.items() if value is not None}
    changed = {**body, **replaced, "config": config}
    merge(changed, beside)
    return changed


def _stored(config: dict[str, Any]) -> dict[str, Any]:
    """Rename ``model_config`` to the private attribute in which RLlib stores it."""
    return {"_model_config" if key == "model_config" else key: value for key, value in config.items()}


def _criteria(stop: dict[str, Any]) -> dict[str, float]:
    """Flatten stop criteria, nested results to ``a/b``. Raises ``ValueError`` if a limit is not a number."""
    found = flattened(stop)
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"stop.{key} = {value!r}: must be a number, reached when the result is at least that")
    return found


def _checkpoint_config(given: dict[str, Any]) -> dict[str, Any]:
    """Set the default, and refuse a metric with ``min-``: Tune would read that as part of the name, and keep the highest."""
    attribute = str(given.get("checkpoint_score_attribute", ""))
    if attribute.startswith("min-"):
        raise ValueError(
            f"checkpoint_config.checkpoint_score_attribute = {attribute!r}: write checkpoint_score_attribute: "
            f"{attribute.removeprefix('min-')} and checkpoint_score_order: min"
        )
    return {"checkpoint_at_end": True, **given}


def _from_python(path: Path) -> tuple[dict[str, Any], AlgorithmConfig]:
    """Run a Python file; return its entries, as a YAML job has them, and its ``config``."""
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
    if "language_model" in values:  # RAPO's `model`; otherwise --set would change RLlib's dict of that name
        values["model"] = values.pop("language_model")
    return {"run": config.algo_class, "config": values, "stop": given, "loggers": namespace.get("loggers")}, config

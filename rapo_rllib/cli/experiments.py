"""A YAML or Python file to checked experiments: every mistake is found here, before Ray starts."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rapo_rllib.cli.old_keys import translated_config, translated_stop
from rapo_rllib.cli.options import RunOptions

_KNOWN = (
    "run",
    "env",
    "stop",
    "config",
    "num_samples",
    "checkpoint_config",
    "storage_path",
    "restore",
    "max_failures",
    "resources_per_trial",
)


@dataclass
class ExperimentSpec:
    """One experiment, checked."""

    name: str
    run: str | type
    config: dict[str, Any]  # may hold grid_search
    stop: dict[str, Any] = field(default_factory=dict)
    num_samples: int = 1
    checkpoint_config: dict[str, Any] = field(default_factory=dict)
    storage_path: str | None = None
    restore: str | None = None
    max_failures: int = 0

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.run if isinstance(self.run, str) else self.run.__name__


def load_experiments(path: Path, options: RunOptions) -> list[ExperimentSpec]:
    """Read and check ``path``.

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
        _check(spec)
    return specs


def _from_yaml(path: Path) -> list[ExperimentSpec]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}not YAML: {error.problem}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError("must hold at least one experiment: a name, and below it run, env, stop, config")
    return [_spec(name, body) for name, body in content.items()]


def _spec(name: str, body: Any) -> ExperimentSpec:
    from rapo_rllib.config_checks import refuse_unknown_keys

    if not isinstance(body, dict):
        raise ValueError(f"experiment {name!r} must be a mapping with run, env, stop, config")
    refuse_unknown_keys(body, _KNOWN, where=f"{name}.")
    if not body.get("run"):
        raise ValueError(f"{name}.run is missing: name the algorithm, for example run: RAPO")
    if body.get("resources_per_trial"):
        raise ValueError(f"{name}.resources_per_trial: resources are config keys now (num_env_runners)")
    config = dict(body.get("config") or {})
    if "env" in body:
        config["env"] = body["env"]
    return ExperimentSpec(
        name=str(name),
        run=body["run"],
        config=translated_config(config, body["run"]),
        stop=translated_stop(dict(body.get("stop") or {})),
        num_samples=int(body.get("num_samples") or 1),
        checkpoint_config=dict(body.get("checkpoint_config") or {}),
        storage_path=body.get("storage_path"),
        restore=body.get("restore"),
        max_failures=int(body.get("max_failures") or 0),
    )


def _from_python(path: Path) -> ExperimentSpec:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    namespace = runpy.run_path(str(path))
    config = namespace.get("config")
    if not isinstance(config, AlgorithmConfig):
        raise ValueError("must define `config`, an AlgorithmConfig (and optionally `stop`, a dict)")
    if config.algo_class is None:
        raise ValueError("`config` has no algorithm: use PPOConfig(), RAPOConfig(), ...")
    return ExperimentSpec(
        name=path.stem, run=config.algo_class, config=config.to_dict(), stop=translated_stop(dict(namespace.get("stop") or {}))
    )


def _apply(spec: ExperimentSpec, options: RunOptions) -> None:
    """The command line wins over the file."""
    if options.stop is not None:
        spec.stop = translated_stop(options.stop)
    if options.env is not None:
        spec.config["env"] = options.env
    for key, value in options.overrides:
        _set_dotted(spec.config, key, value)
    given = {
        "checkpoint_frequency": options.checkpoint_frequency,
        "checkpoint_at_end": options.checkpoint_at_end,
        "num_to_keep": options.num_to_keep,
        "checkpoint_score_attribute": options.checkpoint_score_attribute,
    }
    defaults = {"checkpoint_at_end": True}
    chosen = {key: value for key, value in given.items() if value is not None}
    spec.checkpoint_config = {**defaults, **spec.checkpoint_config, **chosen}
    spec.storage_path = options.storage_path or spec.storage_path
    spec.restore = options.restore or spec.restore
    spec.num_samples = options.num_samples or spec.num_samples


def _set_dotted(config: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = config.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ValueError(f"--set {key}: config.{parent} is {inner!r}, which has no keys")
        config[parent] = dict(inner)
        config = config[parent]
    config[last] = value


def _check(spec: ExperimentSpec) -> None:
    from ray.tune import CheckpointConfig

    from rapo_rllib.config_checks import settings_from

    settings_from(CheckpointConfig, spec.checkpoint_config, f"{spec.name}.checkpoint_config")
    if spec.restore is not None and not (Path(spec.restore) / "rllib_checkpoint.json").exists():
        raise ValueError(f"restore = {spec.restore!r} is not a checkpoint folder of RLlib")
    cls = _algorithm_class(spec)
    for variant in _variants(spec.config):
        try:
            _check_variant(cls, variant)
        except ValueError as error:
            raise ValueError(f"experiment {spec.name!r}: {error}") from error


def _algorithm_class(spec: ExperimentSpec) -> Any:
    import difflib

    from ray.rllib.algorithms.registry import ALGORITHMS
    from ray.tune.registry import get_trainable_cls

    if not isinstance(spec.run, str):
        return spec.run
    if spec.run not in ALGORITHMS:
        near = difflib.get_close_matches(spec.run, ALGORITHMS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(ALGORITHMS))}"
        raise ValueError(f"{spec.name}.run = {spec.run!r} is not an algorithm of RLlib: {hint}")
    return get_trainable_cls(spec.run)


def _variants(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every grid point; random samples are drawn once."""
    from ray.tune.search.variant_generator import generate_variants

    for _, variant in generate_variants(config):
        yield variant


def _check_variant(cls: Any, variant: dict[str, Any]) -> None:
    from rapo_rllib.config_checks import known_keys, refuse_unknown_keys

    config = cls.get_default_config()
    refuse_unknown_keys(variant, known_keys(config), where="config.")
    config.update_from_dict(variant)
    if config.env is None and config.is_online:
        raise ValueError("env is missing: name an environment, for example env: CartPole-v1")
    if hasattr(config, "preflight"):
        config.preflight()
    else:
        config.validate()

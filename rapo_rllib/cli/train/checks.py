"""Find the mistakes of an experiment before Ray starts: algorithm, keys, values, environment, checkpoint folders."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.loggers import imported, made_loggers
from rapo_rllib.cli.train.schedulers import check_scheduler, make_scheduler
from rapo_rllib.config.checks import refuse_unknown
from rapo_rllib.settings.knobs import build

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def check_experiment(spec: ExperimentSpec) -> list[dict[str, float]]:
    """Check every variant of ``spec``; replace names of algorithm and environment by classes, and loggers by callbacks.

    Args:
        spec: as it was read; changed in place.

    Returns:
        The resources that a trial of each variant needs.

    Raises:
        ValueError: naming the experiment, the key and what to do.
    """
    from ray.tune import CheckpointConfig
    from ray.tune.search.variant_generator import generate_variants

    try:
        for key in ("checkpoint_frequency", "num_to_keep"):
            if not isinstance(value := spec.checkpoint_config.get(key), int | None):
                raise ValueError(f"checkpoint_config.{key} = {value!r}: must be a whole number")
        build(CheckpointConfig, spec.checkpoint_config, "checkpoint_config.")
        if spec.restore is not None and not (Path(spec.restore).expanduser() / "rllib_checkpoint.json").is_file():
            raise ValueError(f"restore = {str(spec.restore)!r}: no checkpoint folder of RLlib on this machine")
        spec.loggers = made_loggers(spec.loggers)
        _find_classes(spec)
        scheduler = make_scheduler(spec.scheduler) if spec.scheduler else None
        needed = []
        for _, variant in generate_variants(spec.config):
            config = _made_config(spec, variant)
            _boundary(config.preflight if hasattr(config, "preflight") else config.validate)
            if scheduler is not None:
                check_scheduler(scheduler, spec.scheduler, variant, config)
            needed.append(dict(spec.algorithm.default_resource_request(config).required_resources))
        return needed
    except ValueError as error:
        raise ValueError(f"experiment {spec.name!r}: {error}") from error


def only_config(specs: list[ExperimentSpec]) -> Any:
    """Make the config of a file that describes one training, for commands that do something else with it.

    Keys and values are checked, but not whether model and buffer exist: the command may be about to make them.

    Raises:
        ValueError: there are several experiments or grid points, or something in the only one is wrong.
    """
    from ray.tune.search.variant_generator import generate_variants, parse_spec_vars

    if len(specs) > 1:
        raise ValueError(f"holds {len(specs)} experiments ({', '.join(spec.name for spec in specs)}): leave one of them in")
    (spec,) = specs
    try:
        _find_classes(spec)
        variants = [variant for _, variant in generate_variants(spec.config)]
        if len(variants) > 1:
            raise ValueError(f"describes {len(variants)} trials: replace grid_search by one of its values (--set key=value)")
        for path, _ in parse_spec_vars(spec.config)[1]:
            key = ".".join(map(str, path))
            raise ValueError(f"config.{key} is to be drawn at random: replace the search by one value (--set {key}=value)")
        config = _made_config(spec, variants[0])
        _boundary(config.validate)
        return config
    except ValueError as error:
        raise ValueError(f"experiment {spec.name!r}: {error}") from error


def _find_classes(spec: ExperimentSpec) -> None:
    """Replace the names of algorithm and environment by their classes."""
    from ray.rllib.algorithms.registry import ALGORITHMS

    if isinstance(name := spec.algorithm, str):
        if name not in ALGORITHMS:
            near = difflib.get_close_matches(name.upper(), ALGORITHMS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(ALGORITHMS))}"
            raise ValueError(f"run = {name!r} is not an algorithm of RLlib: {hint}")
        spec.algorithm = ALGORITHMS[name]()[0]
    if "env" in spec.config:
        spec.config["env"] = _named_env(spec.config["env"])


def _made_config(spec: ExperimentSpec, variant: dict[str, Any]) -> Any:
    base = spec.base_config
    config = spec.algorithm.get_default_config() if base is None else base.copy(copy_frozen=False)
    names = [config._translate_special_keys(key, warn_deprecated=False) for key in variant]
    refuse_unknown(config, names, "config.")
    _boundary(lambda: config.update_from_dict(variant))
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise ValueError("config is for RLlib's old API stack: remove api_stack(...), or enable_rl_module_and_learner: false")
    _check_env(config)
    return config


def _boundary(step: Any) -> None:
    """Call ``step``, and turn the exceptions of many types that RLlib raises for a user's mistake into ``ValueError``."""
    try:
        step()
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"config is refused by RLlib: {type(error).__name__}: {error}") from error


def _named_env(env: Any) -> Any:
    """Import ``package.module.Class``, which RLlib's env runners do not look up; return any other ``env`` as it is."""
    if isinstance(env, dict) and "grid_search" in env:
        return {"grid_search": [_named_env(one) for one in env["grid_search"]]}
    if not isinstance(env, str) or not re.fullmatch(r"[^\W\d]\w*(\.\w+)+", env):
        return env
    return imported(env, "env")


def _check_env(config: AlgorithmConfig) -> None:
    if config.env is None:
        if config.is_online and config.input_ == "sampler" and config.observation_space is None:
            raise ValueError("env is missing: name an environment, for example env: CartPole-v1")
        return
    if not isinstance(config.env, str):
        return
    import gymnasium
    from ray.tune.registry import ENV_CREATOR, _global_registry

    if _global_registry.contains(ENV_CREATOR, config.env):
        return
    try:
        gymnasium.spec(config.env)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"env = {config.env!r}: {error}") from error


def check_resources(needed: list[dict[str, float]], available: dict[str, float]) -> None:
    """Refuse trials that need more than Ray has here: they would wait for ever.

    Raises:
        ValueError: naming the resource, and the keys that ask for it.
    """
    keys = {"CPU": "num_env_runners, num_learners or num_cpus_*", "GPU": "num_gpus_per_learner or num_gpus_per_env_runner"}
    for trial in needed:
        for name, amount in trial.items():
            if amount > available.get(name, 0):
                raise ValueError(
                    f"a trial needs {amount:g} {name}, but Ray has {available.get(name, 0):g} here: lower "
                    f"{keys.get(name, 'custom_resources_*')}, or join a cluster (--ray-address)"
                )

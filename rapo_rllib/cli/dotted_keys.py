"""``--set a.b.c=value``: keys with dots as nested mappings, put over what a file or a checkpoint says, level by level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rapo_rllib.cli.train.search_space import is_search
from rapo_rllib.validation import refuse_unknown_keys

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def set_dotted(config: dict[str, Any], key: str, value: Any) -> None:
    """``config[a][b] = value`` for the key ``a.b``. Raises ``ValueError`` where ``a`` was just set to a plain value."""
    *parents, last = key.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
        if not isinstance(config, dict):
            raise ValueError(f"--set {key}: {parent} was just set to {config!r}, which has no keys")
    config[last] = value


def merge(config: dict[str, Any], changes: dict[str, Any], where: str = "") -> None:
    """Put ``changes`` into ``config``, level by level. Raises ``ValueError`` where a value that has no keys is to get some."""
    for key, value in changes.items():
        old = config.get(key)
        if isinstance(value, dict) and not is_search(value) and old is not None:
            if not isinstance(old, dict):
                raise ValueError(f"--set {where}{key}: its value is {old!r}, which has no keys")
            config[key] = dict(old)
            merge(config[key], value, f"{where}{key}.")
        else:
            config[key] = value


def with_overrides(config: AlgorithmConfig, overrides: Iterable[tuple[str, Any]]) -> AlgorithmConfig:
    """Apply ``--set`` keys to a config, in place; ``engine.dtype`` keeps the other keys of ``engine``.

    Raises:
        ValueError: there is no such key, or its value has no keys.
    """
    from rapo_rllib.config.checks import known_keys
    from rapo_rllib.config.other_names import refuse_other_names

    given: dict[str, Any] = {}
    for key, value in overrides:
        set_dotted(given, key, value)
    if hasattr(config, "preflight"):
        refuse_other_names(given, known_keys(config))
    refuse_unknown_keys(given, known_keys(config), "--set ")
    changed = {key: _own(config, key) for key in given}
    merge(changed, given)
    config.update_from_dict(changed)
    return config


def _own(config: AlgorithmConfig, key: str) -> Any:
    return config.language_model if key == "model" and hasattr(config, "language_model") else getattr(config, key, None)

"""Identity of the model that a checkpoint belongs to; names and shapes of weights do not show it, as many models share them.

    save:     model.json beside the weights     restore: compared with the model here --> CheckpointError if they differ

* A model's ``config.json`` decides what its weights compute (positions, activation).
* With LoRA, a checkpoint holds adapters, which mean nothing without the base model that they were trained beside. With
  ``kl_coeff``, the model that training started from is the reference model, also after a restore. Both models are recognised
  by the last part of their name or path.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import CheckpointError
from rapo_rllib.services.json_files import read_json
from rapo_rllib.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

IDENTITY = "model.json"  # in the folder of the training state

# Parts of config keys that may differ, as weights mean the same: precision, versions, how the model runs and is sampled from.
_IRRELEVANT = (
    "dtype",
    "version",
    "_name_or_path",
    "use_cache",
    "attn_implementation",
    "dropout",
    "pdrop",
    "initializer",
    "token_id",
)


def write_identity(folder: str, settings: ModelSettings, config: PretrainedConfig) -> None:
    """Write ``model.json`` into ``folder``; ``config`` is Hugging Face's."""
    identity = {"name_or_path": settings.name_or_path, "config": _relevant(config)}
    (Path(folder) / IDENTITY).write_text(json.dumps(identity, indent=1), encoding="utf-8")


def check_identity(folder: str, settings: ModelSettings, config: PretrainedConfig, *, needs_base: bool) -> None:
    """Refuse a training state that belongs to another model.

    Args:
        folder: of the training state.
        settings: of the model here.
        config: Hugging Face config of the model here.
        needs_base: whether the weights under ``name_or_path`` still matter, as base of adapters or as reference model.

    Raises:
        CheckpointError: the models differ (the message names both, and what differs), or ``model.json`` is unreadable.
    """
    try:
        there = read_json(Path(folder) / IDENTITY, {"name_or_path": str, "config": dict})
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} does not say which model it belongs to: {error}") from error
    problem = _difference(there["config"], _relevant(config))
    name, other = settings.name_or_path, there["name_or_path"]
    if not problem and needs_base and Path(name).name != Path(other).name:
        problem = "LoRA and kl_coeff need the model that training started from"
    if problem:
        raise CheckpointError(
            f"{folder} was made with model.name_or_path {other!r}, here it is {name!r}. They are not the same model: "
            f"{problem}. Restore with the model that it was made with."
        )


def _relevant(config: PretrainedConfig) -> dict[str, Any]:
    def kept(value: Any) -> Any:
        """Return a config, or a part of one such as ``text_config``, without the entries that may differ."""
        if not isinstance(value, dict):
            return value
        return {key: kept(inner) for key, inner in value.items() if not any(part in key for part in _IRRELEVANT)}

    found: dict[str, Any] = kept(json.loads(json.dumps(config.to_dict(), default=str)))
    return found


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Describe the first entry that differs; None if none does. Keys that only one config has are not compared."""
    changed = (key for key in sorted(before.keys() & now.keys()) if before[key] != now[key])
    return next((f"in config.json {key} is {before[key]!r}, here {now[key]!r}" for key in changed), None)

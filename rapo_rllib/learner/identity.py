"""Tell which model a checkpoint belongs to: names and shapes of weights do not tell, as many models share them.

    save:     model.json beside the weights     restore: the same of the model here --> CheckpointError where they differ

* A model's ``config.json`` decides what its weights compute (positions, activation).
* With LoRA the weights of a checkpoint are adapters, which mean nothing without the base model that they were trained beside;
  and with ``kl_coeff`` the model that training started from is the reference, also after a restore. Both are known by a
  checksum of each weight's first row on disk; a hub's model by its name, other folders by the last part of theirs.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.errors import CheckpointError
from rapo_rllib.models.loading import resolve_model
from rapo_rllib.services.json_files import read_json
from rapo_rllib.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

IDENTITY = "model.json"  # in the folder of the training state

# What may differ where the same weights mean the same: precision, versions, how the model is run, and how its text is sampled.
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


def write_identity(folder: str, settings: ModelSettings, config: PretrainedConfig, base: int) -> None:
    """Write ``model.json`` into ``folder``; ``config`` is Hugging Face's, ``base`` the model's :func:`base_checksum`."""
    identity = {"name_or_path": settings.name_or_path, "base": base, "config": _relevant(config)}
    (Path(folder) / IDENTITY).write_text(json.dumps(identity, indent=1), encoding="utf-8")


def check_identity(folder: str, settings: ModelSettings, config: PretrainedConfig, base: int, *, needs_base: bool) -> None:
    """Compare with the model that the state in ``folder`` belongs to.

    Args:
        folder: of the training state.
        settings: of the model here.
        config: its Hugging Face config.
        base: its :func:`base_checksum`.
        needs_base: whether the weights on disk still matter: as base of adapters, or as reference model.

    Raises:
        CheckpointError: naming both models, what differs, and what to do.
    """
    try:
        there = read_json(Path(folder) / IDENTITY, {"name_or_path": str, "base?": int, "config": dict})
    except OSError as error:
        raise CheckpointError(
            f"{folder} does not say which model it belongs to: {IDENTITY} cannot be read ({error})"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{error}. Take an older checkpoint.") from error
    problem = _difference(there["config"], _relevant(config))
    name, other = settings.name_or_path, there["name_or_path"]
    sums = (base, there.get("base") or 0)
    are_ids = not any(sums) and name.count("/") == other.count("/") == 1  # a hub's, whose names are whole
    of_both = sums if all(sums) else (name, other) if are_ids else (Path(name).name, Path(other).name)
    if not problem and needs_base and of_both[0] != of_both[1]:
        problem = "LoRA and kl_coeff need the very weights that training started from"
    if problem:
        raise CheckpointError(
            f"{folder} was made with model.name_or_path {other!r}, here it is {name!r}. They are not the same model: "
            f"{problem}. Restore with the model that it was made with."
        )


def base_checksum(name_or_path: str) -> int:
    """Sum up the first row of every weight of a model's files, wherever they lie; 0 of a model without a folder of them."""
    from safetensors import safe_open

    checksum = 0
    for file in sorted(Path(resolve_model(name_or_path)).glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in sorted(weights.keys()):
                part = weights.get_slice(name)
                row = part[:1] if part.get_shape() else weights.get_tensor(name)
                checksum = zlib.crc32(row.flatten().view(torch.uint8).numpy(), checksum)
    return checksum


def _relevant(config: PretrainedConfig) -> dict[str, Any]:
    def kept(value: Any) -> Any:
        """Return a config, or a part of one such as ``text_config``, without the entries that may differ."""
        if not isinstance(value, dict):
            return value
        return {key: kept(inner) for key, inner in value.items() if not any(part in key for part in _IRRELEVANT)}

    found: dict[str, Any] = kept(json.loads(json.dumps(config.to_dict(), default=str)))
    return found


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Find what shows that the two are different models. Keys that only one version of transformers writes do not."""
    changed = (key for key in sorted(before.keys() & now.keys()) if before[key] != now[key])
    return next((f"in config.json {key} is {before[key]!r}, here {now[key]!r}" for key in changed), None)

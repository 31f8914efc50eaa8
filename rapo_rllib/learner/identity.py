"""Tell which model a checkpoint belongs to: names and shapes of weights do not tell, as many models share them.

    save:     model.json beside the weights     restore: the same of the model here --> CheckpointError where they differ

* With LoRA the weights of a checkpoint are adapters, and mean nothing without the base model that they were trained beside.
* A model's ``config.json`` decides what its weights compute (positions, activation), and its vocabulary what its tokens are.
* With ``kl_coeff`` the model that training started from is the reference, also after a restore.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import CheckpointError
from rapo_rllib.models.loading import load_tokenizer, untied
from rapo_rllib.services.json_files import read_json
from rapo_rllib.settings import ModelSettings
from rapo_rllib.weights.digest import fingerprint

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

IDENTITY = "model.json"  # in the folder of the training state

_SHAPE = {"name_or_path": str, "base": str | None, "reference": str | None, "vocabulary": str | None, "config": dict}

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

_MEANINGS = {  # of checksums that differ
    "base": "the adapters belong to other base weights",
    "reference": "the KL term's reference model, which is the one that training started from, has other weights",
    "vocabulary": "the tokenizers have other vocabularies",
}


def base_fingerprint(language_model: PreTrainedModel) -> str:
    """Return the fingerprint of its present weights: the frozen ones, or those that are yet to be trained."""
    return fingerprint(untied(language_model))


def model_identity(
    settings: ModelSettings, config: PretrainedConfig, base: str | None, reference: str | None
) -> dict[str, Any]:
    """Return the content of ``model.json``.

    Args:
        settings: of the model.
        config: of the language model, Hugging Face's.
        base: fingerprint of the model that adapters belong to; None without LoRA.
        reference: fingerprint of the reference model; None without KL term.
    """
    vocabulary = sorted(load_tokenizer(settings).get_vocab().items())
    values = json.loads(json.dumps(config.to_dict(), default=str))
    return {
        "name_or_path": settings.name_or_path,
        "base": base,
        "reference": reference,
        "vocabulary": f"{zlib.crc32(repr(vocabulary).encode('utf-8', 'surrogatepass')):08x}",
        "config": _relevant(values),
    }


def _relevant(value: Any) -> Any:
    """A config, or a part of one such as ``text_config``, without what may differ."""
    if not isinstance(value, dict):
        return value
    return {key: _relevant(inner) for key, inner in value.items() if not any(part in key for part in _IRRELEVANT)}


def write_identity(folder: str, identity: Mapping[str, Any]) -> None:
    """Write ``model.json`` into ``folder``."""
    (Path(folder) / IDENTITY).write_text(json.dumps(identity, indent=1), encoding="utf-8")


def check_identity(folder: str, here: Mapping[str, Any]) -> None:
    """Compare with the model that the state in ``folder`` belongs to.

    Raises:
        CheckpointError: naming both models, what differs, and what to do.
    """
    try:
        there = read_json(Path(folder) / IDENTITY, _SHAPE)
    except OSError as error:
        raise CheckpointError(
            f"{folder} does not say which model it belongs to: {IDENTITY} cannot be read ({error})"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{error}. Take an older checkpoint.") from error
    if problem := _difference(there, here):
        raise CheckpointError(
            f"{folder} was made with model.name_or_path {there['name_or_path']!r}, here it is {here['name_or_path']!r}. They "
            f"are not the same model: {problem}. Restore with the model that it was made with."
        )


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Find what shows that the two are different models. Keys that only one version of transformers writes do not."""
    before, now = _relevant(there["config"]), _relevant(here["config"])
    for key in sorted(before.keys() & now.keys()):
        if before[key] != now[key]:
            return f"in config.json {key} is {before[key]!r}, here {now[key]!r}"
    for key, meaning in _MEANINGS.items():
        if None not in (there[key], here[key]) and there[key] != here[key]:
            return f"{meaning} (checksum {there[key]}, here {here[key]})"
    return None

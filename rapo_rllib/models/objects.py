"""Files in the cache for models and data sets that a user passes as objects, so that all processes of a job can load them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rapo_rllib.models.loading import cache_folder

_FILES = {"dataset": "train", "test_dataset": "test"}  # key -> the file's name, which questions and metrics are named after


def model_path(given: Any) -> Any:
    """Write a loaded model, or (model, tokenizer), to a folder, and return its path; a name or path is returned as it is.

    Raises:
        ValueError: no tokenizer is given, and none is found where the model was loaded from.
    """
    model, tokenizer = given if isinstance(given, list | tuple) and len(given) == 2 else (given, None)
    if not hasattr(model, "save_pretrained"):
        return given
    if tokenizer is None:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
        except (OSError, ValueError) as error:
            raise ValueError(f"model.name_or_path: give the tokenizer, too: (model, tokenizer) ({error})") from error
    return str(_written("models", lambda folder: [part.save_pretrained(folder) for part in (model, tokenizer)]))


def with_data_files(env_config: Mapping[str, Any]) -> dict[str, Any]:
    """Write every ``datasets.Dataset`` and ``pandas.DataFrame`` of ``env_config`` to a file, and put its path in place.

    Raises:
        ValueError: a data set has several splits.
    """
    found = dict(env_config)
    for key, name in [(key, name) for key, name in _FILES.items() if key in found]:
        rows = found[key]
        if isinstance(rows, Mapping):
            raise ValueError(f"env_config.{key}: has the splits {', '.join(rows)}: give one, as {key}=data[{min(rows)!r}]")
        if hasattr(rows, "to_parquet"):
            found[key] = _data_file(rows, f"{name}.parquet")
    return found


def _data_file(rows: Any, name: str) -> str:
    return str(_written("datasets", lambda folder: rows.to_parquet(str(folder / name))) / name)


def _written(kind: str, write: Callable[[Path], Any]) -> Path:
    """Write into a folder that is named by a hash of its content, so that a resumed job finds it again; returns the folder."""
    home = cache_folder() / kind
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as temporary:
        folder, digest = Path(temporary) / "new", hashlib.sha256()
        folder.mkdir()
        write(folder)
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            with open(file, "rb") as opened:
                digest.update(str(file.relative_to(folder)).encode() + hashlib.file_digest(opened, "sha256").digest())
        target = home / digest.hexdigest()[:16]
        if not target.is_dir():
            os.rename(folder, target)
    return target

"""Record of the encoder that made a collection's vectors, and the check that the present encoder makes comparable ones.

The record has the encoder's facts (weights, width, pooling, length, the part of a text that is embedded) and its vector of a
fixed text. The vector also covers an endpoint, whose weights are hidden, and the files of a model's folder beside the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.embedding.local import PACKAGED_EMBEDDERS

if TYPE_CHECKING:
    import numpy as np

MIN_COSINE = 0.99  # between two vectors of the fixed text; both precisions of the same weights reach more


def made_by(fingerprint: str, probe: np.ndarray) -> dict[str, Any]:
    """Return the record of an encoder: its facts as JSON, and its vector of the fixed text, ``[D]``."""
    return {"fingerprint": fingerprint, "probe": [round(float(x), 5) for x in probe]}


def lasting_name(name: str) -> str:
    """Return a name that is valid wherever a command runs: a folder's absolute path; other names unchanged."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if name not in PACKAGED_EMBEDDERS and folder.is_dir() else name


def difference(note: Mapping[str, Any], fingerprint: str, probe: np.ndarray) -> str:
    """Tell why the vectors of a collection and those of an encoder are not comparable; empty: they are.

    Args:
        note: the record (:func:`made_by`) of the encoder that made the collection.
        fingerprint: the facts of the present encoder, as JSON.
        probe: the present encoder's vector of the fixed text, ``[D]``.

    Example: ``"pooling: 'mean' there, 'last_token' here"``
    """
    import numpy as np

    there, here = ({"pooling": "mean", **facts} for facts in map(json.loads, (note["fingerprint"], fingerprint)))
    names = (name for name in sorted({*there, *here}) if there.get(name) != here.get(name))
    if different := [f"{name}: {there.get(name)!r} there, {here.get(name)!r} here" for name in names]:
        return "; ".join(different)
    stored = np.asarray(note["probe"])
    cosine = float(stored @ probe / (np.linalg.norm(stored) * np.linalg.norm(probe)))
    if cosine >= MIN_COSINE:
        return ""
    return f"the vector of a fixed text: a cosine of {cosine:.3f} between the one stored there and the one made here"

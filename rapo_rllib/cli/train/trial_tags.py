"""Write in what a trial differs from others: Tune's own tag says ``lr=0.0000`` of a rate of 1e-6."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

_MOST_CHARS = 130  # as Tune's own names of folders


def exact_tag(tag: str, values: Mapping[str, Any]) -> str:
    """Tune's tag with the numbers themselves.

    >>> exact_tag("0_lr=0.0000,rank=8", {"lr": 1e-6, "model/lora/rank": 8})
    '0_lr=1e-06,rank=8'
    """
    for key, value in values.items():
        if isinstance(value, float):
            name = key.rsplit("/", 1)[-1]
            tag = re.sub(rf"(^(?:\d+_)?|,){re.escape(name)}={value:.4f}", rf"\g<1>{name}={value:g}", tag)
    return tag


def trial_folder(trial: Any) -> str:
    """The name of a trial's folder, as Tune makes it, with exact numbers."""
    named = f"{trial}_{exact_tag(trial.experiment_tag, trial.evaluated_params)}"[:_MOST_CHARS]
    return f"{named}_{time.strftime('%Y-%m-%d_%H-%M-%S')}".replace("/", "_")

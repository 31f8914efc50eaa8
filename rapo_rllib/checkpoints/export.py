"""Export of the trained policy by the learners: a whole Hugging Face model, or only its LoRA adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapo_rllib.settings import ModelSettings


def export_policy(model: ModelSettings, learner_group: Any, folder: str | Path, merged: bool) -> Path:
    """Let the learners write the policy; returns the folder.

    Args:
        model: that is trained.
        learner_group: a ``RAPOLearnerGroup``.
        folder: made if it is not there; with remote learners on storage that they share.
        merged: False: the adapters alone.

    Raises:
        ValueError: adapters were asked for, and there are none.
        LearnerError: a learner could not write it, or died.
        RuntimeError: it was written elsewhere.
    """
    if not merged and model.lora is None:
        raise ValueError("export_policy(merged=False): adapters are trained with model.lora only; leave merged out")
    target = Path(folder).absolute()
    target.mkdir(parents=True, exist_ok=True)
    learner_group.on_all(lambda learner: learner.weights.export(str(target), merged), "an export of the policy")
    if not (target / ("config.json" if merged else "adapter_config.json")).exists():
        raise RuntimeError(f"the policy was not written to {target}: do learners and driver share this folder?")
    return target

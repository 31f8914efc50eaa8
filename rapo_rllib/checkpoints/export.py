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
        RuntimeError: no learner could write it, or one died.
    """
    if not merged and model.lora is None:
        raise ValueError("export_policy(merged=False): adapters are trained with model.lora only; leave merged out")
    target = Path(folder).absolute()
    target.mkdir(parents=True, exist_ok=True)

    def failure(learner: Any) -> str:
        try:
            learner.weights.export(str(target), merged)
        except Exception as error:  # RLlib would end the learner, and not tell why
            return f"{type(error).__name__}: {error}"
        return ""

    if failed := list(filter(None, learner_group.on_all(failure, "an export of the policy"))):
        raise RuntimeError(f"the policy was not written to {target}: {failed[0]}")
    if not (target / ("config.json" if merged else "adapter_config.json")).exists():
        raise RuntimeError(f"the policy was not written to {target}: do learners and driver share this folder?")
    return target

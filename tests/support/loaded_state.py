"""A callback that writes down what a run holds right after it has read a checkpoint, before it does anything with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from ray.rllib.callbacks.callbacks import RLlibCallback


class LoadedState(RLlibCallback):
    """``loaded_<trial>.json`` in the folder that the command was started in."""

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        learner = algorithm.learner_group._learner
        (optimizer,) = learner._named_optimizers.values()
        upkeep = algorithm._buffer_updater
        found = {
            "iteration": algorithm.iteration,
            "collection": upkeep._grown.collection,
            "stored": {trace.id: trace.text for trace in upkeep._grown.all_traces()},
            "held": sorted(upkeep._kept.traces),
            "weights": _digest(algorithm.get_module().language_model.parameters()),
            "moments": _digest(entry["exp_avg"] for entry in optimizer.state.values()),
            "cursor": str(algorithm._cursor.get_state()),
            "lr": optimizer.param_groups[0]["lr"],
            "retrieval_prob": algorithm._sampling.retrieval_prob,
            # advantages are computed by the driver, importance weights by the learner
            "retrieval_advantage_weight": algorithm.config.settings.objective.retrieval_advantage_weight,
            "importance_shaping_weight": learner.config.settings.objective.importance_shaping_weight,
        }
        Path(f"loaded_{algorithm.trial_id}.json").write_text(json.dumps(found, default=str))


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().float().numpy().tobytes())
    return digest.hexdigest()

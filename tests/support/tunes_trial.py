"""A trial of RAPO in the test's own process, made as Tune makes it in one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment.trial import _TrialInfo
from ray.tune.result import TRIAL_INFO

from rapo_rllib import RAPO


def tunes_trial(config: Mapping[str, Any], trial_id: str) -> RAPO:
    """Other than ``build_algo``, it bears the name that Tune gave it, whatever checkpoint it goes on from."""
    trial: Any = SimpleNamespace(trial_id=trial_id, placement_group_factory=None, experiment_dir_name="here")
    return RAPO({**config, TRIAL_INFO: _TrialInfo(trial)})

"""Presets: algorithms, the released code's behaviours and the paper's ablations, each one name for several keys.

    ``RAPOConfig().training(preset="without_rr")``, or ``preset: without_rr`` in YAML, alone or below ``grid_search``

Any key that is given beside a preset overrides it. ``step_trace_buffer`` and ``env_config`` of a preset are merged beneath the
user's own, key by key, when they are read, so that it does not matter which was given first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapo_rllib.settings import FLAT
from rapo_rllib.settings.knobs import knobs

NESTED = ("step_trace_buffer", "env_config")

# algorithm.md section 9, row by row. Three of its rows are deliberately not here: the released python tool is a bare subprocess
# (an unsandboxed tool is not offered); the entropy's division by log V cancels (`objective.entropy.step_entropy`); and a
# schedule in which all wait for the slowest gives the same trajectories, later.
RELEASED_CODE: dict[str, Any] = {
    "num_hybrid": 7,  # hybrid count: strict ">" on the index, 7 of 16
    "entropy_top_k": 10,  # entropy: of the top-10 logprobs ...
    "step_entropy_tokens": 20,  # ... of the first 20 tokens ...
    "step_entropy_reduction": "sum",  # ... summed
    "normalize_std": True,  # std in eq. 9: unbiased ...
    "advantage_epsilon": 1e-6,  # ... with this epsilon
    "loss_aggregation": "token",  # loss mean: over tokens
    "clip_low": 0.2,  # clip
    "clip_high": 0.28,
    "dual_clip": 3.0,
    "retrieval_advantage_weight": 0.2,  # a, m: the constants written into the loss
    "importance_shaping_weight": 0.05,
    "retrieval_budget": "prompt_and_response",  # overlong retrieval: prompt + response + trace against the response limit
    "step_trace_buffer": {
        "collection": "step_traces_released",  # other vectors than the default's
        "top_k": 3,  # which trace: the highest reward among the 3 nearest ...
        "selection": "best_reward",
        "fallback_text": "There is no helpful step to show here. Think for yourself.",  # ... or a fixed sentence
        "pooling": "last_token",  # embedding
        "key_recipe": "last_characters",
        "index": "hnsw",  # index of a server: M 32, efConstruction 200, efSearch 128
    },
    "env_config": {"reward": {"preset": "released_code"}},  # outcome reward, scorer included: rewards/terms.py
}

# The algorithms that RAPO is compared with, each one name for the parts of its objective (docs/algorithm.md section 11). All of
# them sample on-policy only. With ``num_hybrid`` given beside the preset the trajectories retrieve, and RAPO's retrieval reward
# and importance shaping join the algorithm's own objective.
_GRPO: dict[str, Any] = {
    "num_hybrid": 0,
    "importance_level": "token",
    "clip_mode": "hard",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "loss_aggregation": "trajectory",
    "normalize_std": True,
}

_ALGORITHMS: dict[str, dict[str, Any]] = {
    # arXiv 2402.03300, without its KL term (kl_coeff: 0.04 there)
    "grpo": _GRPO,
    # arXiv 2503.14476: clip-higher, token mean, dynamic sampling, soft overlong punishment over 4,096 of 20,480 tokens
    "dapo": {
        **_GRPO,
        "clip_high": 0.28,
        "loss_aggregation": "token",
        "dynamic_sampling": True,
        "overlong_buffer_share": 0.2,
    },
    # arXiv 2503.20783: neither the group's deviation nor the response's own length divides
    "dr_grpo": {**_GRPO, "loss_aggregation": "constant", "normalize_std": False},
    # arXiv 2507.18071. Its clip range is narrower than the mismatch of engine and learner, so π_old is the learner's own; and
    # narrower than RAPO's importance shaping, so the shaping comes after the clip
    "gspo": {
        **_GRPO,
        "importance_level": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "old_logprobs": "learner",
        "shaping_order": "after_clip",
    },
    # arXiv 2508.07629
    "gppo": {**_GRPO, "clip_mode": "gradient_preserving", "clip_high": 0.28, "loss_aggregation": "token"},
    # arXiv 2504.14945: an expert's trajectory in each group, its tokens shaped and not clipped; the rest as in Dr. GRPO
    "luffy": {
        **_GRPO,
        "loss_aggregation": "constant",
        "normalize_std": False,
        "off_policy_trajectories": 1,
        "off_policy_source": "expert",
        "off_policy_shaping": 0.1,
    },
    # arXiv 2507.07451 (RLEP): own successes again, with their recorded probabilities; clip-higher and token mean
    "replay": {
        **_GRPO,
        "clip_high": 0.28,
        "loss_aggregation": "token",
        "off_policy_trajectories": 1,
        "off_policy_source": "replay",
        "off_policy_shaping": None,
    },
    # arXiv 2505.10978: adds an advantage among steps from the same state to the trajectory's; the discount is its code's
    "gigpo": {**_GRPO, "credit": "gigpo", "step_discount": 0.95},
    # arXiv 2503.05592: two stages of reward (rewards/terms.py). The paper's objective is REINFORCE++; here it is GRPO's
    "r1_searcher": {**_GRPO, "env_config": {"reward": {"preset": "r1_searcher"}}},
}

PRESETS: dict[str, dict[str, Any]] = {
    "released_code": RELEASED_CODE,
    "without_rpo": {"retrieval_advantage_weight": 0.0, "importance_shaping_weight": 0.0},  # hybrid rollouts, GRPO's objective
    "without_rr": {"retrieval_advantage_weight": 0.0},  # no retrieval reward: A = A_acc
    "without_ris": {"importance_shaping_weight": 0.0},  # no shaping of the importance ratio
    "without_rq": {"retrieval_quality": "none"},  # g = 1
    "without_rt": {"retrieval_timing": "none"},  # Z = g
    "trajectory_retrieval": {
        "retrieval_level": "trajectory",
        "step_trace_buffer": {"collection": "whole_trajectories"},  # apart from that of the steps
    },
    "entropy_increase": {"retrieval_quality": "rise"},
    "low_entropy": {"retrieval_timing": "low_entropy"},
    "random_retrieval": {"retrieval_noise": 1.0},  # p = 1; other p: retrieval_noise itself
    **_ALGORITHMS,
}

_DEFAULTS = {name: declared.default for cls in FLAT for name, declared in knobs(cls).items()}


def check_preset(name: Any) -> None:
    """Raise ``ValueError`` unless ``name`` is a preset or None."""
    if name is not None and (not isinstance(name, str) or name not in PRESETS):
        raise ValueError(f"preset = {name!r}: must be one of {', '.join(PRESETS)}, or null")


def preset_change(keys: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Collect the keys that change if a config with ``keys`` gets the preset ``name`` instead of its own.

    A search over presets (``tune.grid_search`` and the like) is kept as it is; in each trial :func:`with_preset` applies the
    preset chosen.

    Raises:
        ValueError: there is no such preset.
    """
    searched = name is not None and not isinstance(name, str)
    if not searched:
        check_preset(name)
    applied = None if searched else name
    before = {key: _DEFAULTS[key] for key, value in _flat(keys["_applied_preset"]).items() if keys[key] == value}
    return {**before, "preset": name, "_applied_preset": applied, **_flat(applied)}


def with_preset(keys: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Write out the preset in ``given``, a dictionary for ``update_from_dict`` of a config with ``keys``.

    Tune hands a trial the whole config as a dictionary. It has every key, and ``_applied_preset`` names the preset that is in
    its values. If another preset is asked for, values that the user has not changed must not override it. So values that equal
    the old preset's or the default are left out, and such a dictionary cannot set a preset's key back to its default.
    """
    rest = dict(given)
    name = rest.pop("preset", keys["preset"])
    made_with = rest.pop("_applied_preset", name)
    if made_with != name:
        before = {key: _DEFAULTS[key] for key in _flat(name)} | _flat(made_with)
        rest = {key: value for key, value in rest.items() if key not in before or value != before[key]}
    return {**preset_change(keys, name), **rest}


def merge_over_preset(preset: str | None, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``values``, the user's mapping ``key`` (one of ``NESTED``), over the preset's; mappings inside are merged, too."""
    return _merged(PRESETS.get(preset or "", {}).get(key, {}), values)


def _flat(name: Any) -> dict[str, Any]:
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    return {key: value for key, value in preset.items() if key not in NESTED}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result

"""Refuse values that cannot work together; each key's declaration refuses what is wrong by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rapo_rllib.config.gpus import check_gpus
from rapo_rllib.config.presets import check_preset
from rapo_rllib.settings import ObjectiveSettings, Settings, WarmStartSettings
from rapo_rllib.validation import refuse_unknown_keys


def known_keys(config: object) -> set[str]:
    """List the keys that a dictionary for this ``AlgorithmConfig`` may have: attributes, properties, RLlib's special keys."""
    properties = {name for name in dir(type(config)) if isinstance(getattr(type(config), name), property)}
    public = {key.removeprefix("_") for key in vars(config) if key.removeprefix("_") in properties}
    return {*vars(config), *public, "env", "model", "multiagent", "_enable_new_api_stack"}


def refuse_unknown(config: object, given: Collection[str], where: str = "", known: Collection[str] = ()) -> None:
    """Raise ``ValueError`` for a key that ``config`` does not have; name the nearest key, and the page on keys of verl and TRL.

    ``known``: the keys that there are; by default those of :func:`known_keys`.
    """
    try:
        refuse_unknown_keys(given, known or known_keys(config), where)
    except ValueError as error:
        others = " (docs/from_verl_or_trl.md translates keys of verl and TRL)" if hasattr(config, "preflight") else ""
        raise ValueError(f"{error}{others}") from None


def check_applied_preset(keys: Mapping[str, Any]) -> None:
    """Refuse an unknown preset, or one that was set as an attribute and so not applied. ``keys``: a config's attributes."""
    check_preset(keys["preset"])
    if keys["preset"] != keys["_applied_preset"]:
        raise ValueError(f"preset = {keys['preset']!r} was set but not applied: give it to training() or update_from_dict()")


def check_together(settings: Settings, in_evaluation: bool) -> None:
    """Refuse settings that cannot work together.

    Args:
        settings: of one job; each value is right on its own.
        in_evaluation: whether these are settings of an evaluation; without env runners of its own, it uses those that train.

    Raises:
        ValueError: naming the keys, their values and the fix.
    """
    has_env_runners = bool(settings.rllib.num_env_runners) or in_evaluation
    check_gpus(settings, has_env_runners, in_evaluation)
    _check_sharing(settings, has_env_runners)
    _check_sizes(settings)
    _check_budgets(settings)
    _check_clip_room(settings)
    _check_cap(settings)
    _check_objective(settings.objective)
    _check_group_size(settings)
    _check_off_policy(settings)
    _check_shown_steps(settings)
    _check_warm_start(settings.warm_start)
    _check_native(settings)


def _check_sharing(settings: Settings, has_env_runners: bool) -> None:
    """Refuse staleness if engine and learner take turns in one process, and ``stale_groups`` without staleness."""
    update = settings.update
    if update.max_staleness and not has_env_runners:
        raise ValueError(
            f"max_staleness = {update.max_staleness} with num_env_runners = 0: engine and learner take turns in one process; "
            "set num_env_runners to 1 or more"
        )
    if update.stale_groups != "drop" and not update.max_staleness:
        raise ValueError(
            f"stale_groups = {update.stale_groups!r} with max_staleness = 0: nothing becomes too old where every update waits "
            "for its rollouts; set max_staleness to 1 or more, or leave stale_groups out"
        )


def _check_sizes(settings: Settings) -> None:
    """Refuse parts that are larger than the group or training step, and ``hybrid_groups = 'failed'`` if it cannot work."""
    rollout, update = settings.rollout, settings.update
    if rollout.num_hybrid > rollout.group_size:
        raise ValueError(f"num_hybrid = {rollout.num_hybrid} is more than group_size = {rollout.group_size}: lower num_hybrid")
    if rollout.hybrid_groups == "failed" and not 0 < rollout.num_hybrid < rollout.group_size:
        raise ValueError(
            f"hybrid_groups = 'failed' with num_hybrid = {rollout.num_hybrid}, group_size = {rollout.group_size}: on-policy "
            "trajectories tell whether a group failed, hybrid ones help then: set num_hybrid between 1 and group_size - 1, or "
            "hybrid_groups to 'all'"
        )
    if rollout.hybrid_groups == "failed" and rollout.branching is not None:
        raise ValueError(
            "hybrid_groups = 'failed' with branching: each kind forks within its own part of the group; set hybrid_groups to "
            "'all', or leave branching out"
        )
    if rollout.branching is not None and (rollout.branching.initial or 1) > rollout.group_size:
        raise ValueError(
            f"branching.initial = {rollout.branching.initial}: must be a whole number between 1 and {rollout.group_size}, "
            "the group_size"
        )
    if update.num_minibatches > update.questions_per_step:
        raise ValueError(
            f"num_minibatches = {update.num_minibatches} is more than questions_per_step = {update.questions_per_step}: "
            "a minibatch holds at least one whole group"
        )
    if settings.rllib.num_learners > -(-update.questions_per_step // update.num_minibatches):
        raise ValueError(
            f"num_learners = {settings.rllib.num_learners} is more than the groups of a minibatch, questions_per_step = "
            f"{update.questions_per_step} by num_minibatches = {update.num_minibatches}: whole groups are dealt out, so some "
            "learners would never work; raise questions_per_step, or lower num_minibatches"
        )


def _check_budgets(settings: Settings) -> None:
    rollout = settings.rollout
    rollout.check_trains()
    if rollout.num_hybrid and rollout.max_tool_calls == 0 and rollout.retrieval_level == "step":
        raise ValueError("num_hybrid > 0 with max_tool_calls = 0: without a completed tool step nothing is ever retrieved")
    if rollout.retrieval_by_success and not settings.uses_retrieval:
        raise ValueError("retrieval_by_success: nothing retrieves; leave it out, or set num_hybrid and retrieval_prob above 0")


def _check_clip_room(settings: Settings) -> None:
    """Refuse importance shaping that alone (eq. 8 on a ratio of 1) can pass a bound of the clip."""
    objective = settings.objective
    if not settings.rollout.num_hybrid or objective.shaping_order == "after_clip":
        return
    weight = objective.importance_shaping_weight
    for name, bound in (("clip_high", objective.clip_high), ("dual_clip", (objective.dual_clip or float("inf")) - 1)):
        if weight > bound:
            raise ValueError(
                f"importance_shaping_weight = {weight} with {name} = {getattr(objective, name)}: shaping alone can pass the "
                "clip, and trajectories that retrieved have no gradient then; set shaping_order to 'after_clip'"
            )


def _check_cap(settings: Settings) -> None:
    cap, update = settings.objective.importance_cap, settings.update
    if settings.old_policy == "rollout" and cap not in (None, ObjectiveSettings.importance_cap):
        raise ValueError(
            f"importance_cap = {cap} with old_logprobs = {update.old_logprobs!r} and num_minibatches = "
            f"{update.num_minibatches}: π_old is the engine's, so there is nothing to truncate; set old_logprobs to 'learner', "
            "or leave importance_cap out"
        )


def _check_objective(objective: ObjectiveSettings) -> None:
    """Refuse parts of the loss that contradict each other, and a ``step_discount`` that is not read."""
    if objective.clip_mode == "gradient_preserving" and objective.dual_clip is not None:
        raise ValueError(
            f"clip_mode = 'gradient_preserving' with dual_clip = {objective.dual_clip}: the dual clip cuts off a gradient that "
            "is to be preserved; set dual_clip to null"
        )
    if objective.credit != "gigpo" and objective.step_discount != ObjectiveSettings.step_discount:
        raise ValueError(
            f"step_discount = {objective.step_discount} with credit = 'trajectory', which does not read it: set credit to "
            "'gigpo', or leave step_discount out"
        )


def _check_group_size(settings: Settings) -> None:
    """Refuse groups too small for an advantage; with off-policy trajectories, one trajectory of the policy may be enough."""
    size, objective, off_policy = settings.rollout.group_size, settings.objective, settings.off_policy
    compared = {
        "advantage_baseline = 'kind' with ": (objective.advantage_baseline == "kind", "others of their kind"),
        "credit = 'gigpo' with ": (objective.credit == "gigpo", "others whose steps start from the same state"),
        "expert_start_share or expert_step_share with ": (
            off_policy.expert_start_share or off_policy.expert_step_share,
            "others that begin alike",
        ),
        "": (not off_policy.off_policy_trajectories, "the others of its group, and one alone learns nothing"),
    }
    for keys, (holds, others) in compared.items():
        if holds and size < 2:
            raise ValueError(f"{keys}group_size = {size}: a trajectory is compared with {others}; set group_size to 2 or more")


def _check_off_policy(settings: Settings) -> None:
    """Refuse sequence ratios with an expert's trajectories, which have no probabilities, or with the shaping of tokens."""
    level, shaping = settings.objective.importance_level, settings.objective.off_policy_shaping
    if level == "token" or not settings.off_policy.off_policy_trajectories:
        return
    if settings.off_policy.off_policy_source == "expert":
        raise ValueError(
            f"importance_level = {level!r} with off_policy_source = 'expert': what an expert wrote has no "
            "probabilities that a sequence's ratio could be taken to; set importance_level to 'token'"
        )
    if shaping is not None:
        raise ValueError(
            f"importance_level = {level!r} with off_policy_shaping = {shaping}: the "
            "shaping is of a token's ratio; set off_policy_shaping to null"
        )


def _check_shown_steps(settings: Settings) -> None:
    """Check that trained ``shown_steps`` are single steps, and are shaped by token: they have no probabilities of their own."""
    objective, level = settings.objective, settings.rollout.retrieval_level
    how, sequence = objective.shown_steps, objective.importance_level != "token"
    if how == "context":
        return
    if sequence or objective.off_policy_shaping is None:
        key, value = ("importance_level", "token") if sequence else ("off_policy_shaping", 0.1)
        raise ValueError(
            f"shown_steps = {how!r} with {key} = {getattr(objective, key)!r}: its tokens were sampled in another context, or "
            f"not at all, so they have no probabilities that a ratio could be taken to; set {key} to {value!r}"
        )
    if level != "step":
        raise ValueError(
            f"shown_steps = {how!r} with retrieval_level = {level!r}: only single steps have a form of the "
            "policy's own; set shown_steps to 'context', or train on whole trajectories with off_policy_trajectories"
        )


def _check_warm_start(warm_start: WarmStartSettings | None) -> None:
    if warm_start is not None and warm_start.env_config and warm_start.traces != "expert":
        raise ValueError(
            f"warm_start.env_config = {warm_start.env_config} with warm_start.traces = {warm_start.traces!r}: a file "
            "holds its own questions; leave env_config out, or set traces to 'expert'"
        )


def _check_native(settings: Settings) -> None:
    """Refuse retrieval before the first step with the native format: chat templates have no place for it."""
    at_once = settings.rollout.retrieval_level == "trajectory" and settings.uses_retrieval
    if settings.protocol.format == "native" and at_once:
        raise ValueError(
            "retrieval_level = 'trajectory' with protocol.format = 'native': before the first step there is no place for a "
            "turn of its own; set protocol.format to 'tags'"
        )

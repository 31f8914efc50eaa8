"""The off-policy mixing that a config asks for. Flow: RAPOConfig -> here -> ``batching/off_policy.py`` -> ``RAPO``."""

from __future__ import annotations

from typing import Any

from rapo_rllib.batching.off_policy import ExpertSource, OffPolicyMixing, OffPolicySource
from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.config.question_source import expert_trajectories
from rapo_rllib.models.loading import load_tokenizer
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.protocol.chat import ChatProtocol


def make_mixing(config: Any, progress: Progress) -> OffPolicyMixing | None:
    """The mixing of ``off_policy_trajectories`` per group; None: groups hold rollouts only.

    Raises:
        ValueError: the environment's expert has nothing that could be mixed in.
    """
    if not config.off_policy_trajectories:
        return None
    source: OffPolicySource
    if config.off_policy_source == "replay":
        source = ReplayStore(config.replay_per_question, config.replay_capacity)
    else:
        source = _expert_source(config, progress)
    return OffPolicyMixing(source, config.off_policy_trajectories, seed=config.seed or 0)


def _expert_source(config: Any, progress: Progress) -> ExpertSource:
    progress.say("reading the expert's trajectories")
    chat = ChatProtocol(load_tokenizer(config.model_settings), config.protocol_settings)
    experts = expert_trajectories(config, "off_policy_source")
    source = ExpertSource(experts, chat, config.max_response_tokens)
    if not len(source):
        raise ValueError("off_policy_source = 'expert', but the environment's expert has no trajectory with a positive reward")
    progress.say(f"{len(source)} trajectories of the expert can join the groups of their questions")
    return source

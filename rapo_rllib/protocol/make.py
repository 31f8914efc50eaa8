"""Construction of a job's protocol: the implementation for ``protocol.format``, with the environment's tools."""

from __future__ import annotations

from typing import Any

from rapo_rllib.protocol.calls import MakeReader
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.settings import ProtocolSettings

RolloutProtocol = ChatProtocol | NativeProtocol  # all that a rollout knows of a format


def make_protocol(
    tokenizer: Any, settings: ProtocolSettings, env: Any, make_reader: MakeReader | None = None
) -> RolloutProtocol:
    """Make the protocol with which a rollout writes prompts and reads turns.

    Args:
        tokenizer: of the model.
        settings: of the job.
        env: one environment; its ``tool_tags`` and ``tool_schemas`` are what the prompt shows.
        make_reader: makes a reader of calls from parser, tokenizer and schemas; None: calls are plain JSON.

    Raises:
        ValueError: the model or the environment does not support the format.
    """
    check_env(env.unwrapped, settings)
    tags, schemas = tuple(getattr(env.unwrapped, "tool_tags", ())), getattr(env.unwrapped, "tool_schemas", None)
    if settings.format == "tags":
        return ChatProtocol(tokenizer, settings, tags, schemas or ())
    if tags and schemas is None:
        raise ValueError(
            f"protocol.format = 'native': the environment {type(env.unwrapped).__name__} names tools in tool_tags, and has no "
            "tool_schemas (a list of JSON schemas of functions); give it some, or set protocol.format to 'tags'"
        )
    game = getattr(env.unwrapped, "is_game", schemas is None)
    return NativeProtocol(tokenizer, settings, schemas or (), make_reader, game)


def check_env(env: Any, settings: ProtocolSettings) -> None:
    """Refuse with ``ValueError`` an environment whose format or tool tags conflict with the protocol's."""
    told = getattr(getattr(env, "options", None), "protocol", None)
    if isinstance(told, ProtocolSettings) and told.format != settings.format:
        raise ValueError(
            f"env_config.protocol.format = {told.format!r} with protocol.format = {settings.format!r}: the environment would "
            "read another format than the policy writes; leave env_config.protocol out, or set both alike"
        )
    whose = f"the environment {type(env).__name__}: tool_tags"
    settings.check_tool_tags(getattr(env, "tool_tags", ()), whose, "rename it")

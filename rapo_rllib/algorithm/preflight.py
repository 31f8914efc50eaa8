"""Checks that the parts of a config exist, in seconds, before engines, learners or embedders are loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_rllib.endpoint.env import AgentEnv, check_begins
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.models.devices import check_build
from rapo_rllib.models.loading import load_causal_lm, load_tokenizer
from rapo_rllib.models.lora import check_targets
from rapo_rllib.models.trainable import check_trainable
from rapo_rllib.protocol.make import check_env, make_protocol
from rapo_rllib.protocol.native import NativeProtocol
from rapo_rllib.rewards import check_columns
from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader
from rapo_rllib.settings import BufferSettings, Settings, WarmStartSettings
from rapo_rllib.types import Question

if TYPE_CHECKING:
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.config.question_source import QuestionSource

logger = logging.getLogger(__name__)


def check_model(settings: Settings) -> None:
    """Raise ``ValueError``, naming the key and what to do, if the model is missing or cannot be trained as the settings ask."""
    check_trainable(settings.model)
    if settings.model.lora is not None:
        check_targets(load_causal_lm(settings.model, with_weights=False), settings.model.lora)


def check_parts(config: RAPOConfig) -> None:
    """Check model, environment, questions, Step-Trace Buffer and expert.

    Raises:
        ValueError: naming the key, its value and what to do.
    """
    _check_evaluation_config(config)
    settings, source = config.settings, config.question_source
    check_build(settings.rllib.num_gpus_per_env_runner)
    check_model(settings)
    env = source.env_maker()()
    check_env(env.unwrapped, settings.protocol)
    if isinstance(env.unwrapped, AgentEnv):
        check_begins(settings.off_policy)
    _check_branches(settings, env.unwrapped)
    if settings.protocol.format != "tags":  # the tags take any model
        _check_template(settings, env, source.questions("train"))
    questions = source.questions("train")
    if isinstance(env.unwrapped, ToolEnv):
        check_columns(env.unwrapped.options.scorer, questions)
    env.close()
    if config.evaluation_interval:
        _check_evaluation(config)
    if settings.uses_retrieval:
        _check_buffer(settings.buffer)
    if settings.warm_start is not None:
        _check_warm_start(settings.warm_start, source)
    if settings.off_policy.needs_expert:
        check_traces(settings.off_policy.expert_traces, "expert_traces", source)


def _check_branches(settings: Settings, env: Any) -> None:
    copied = settings.rollout.branching is not None and isinstance(env, ToolEnv)
    for entry in env.tool_entries() if copied else ():
        if isinstance(entry, Mapping) and (entry.get("options") or {}).get("keep_state"):
            raise ValueError(
                f"branching with keep_state of the tool {entry.get('name')!r}: a process that has run code is not copied, so "
                "no trajectory would branch; set keep_state to false, or leave branching out"
            )


def _check_template(settings: Settings, env: Any, questions: Sequence[Question]) -> None:
    """Check that the chat template takes a retrieved step, and the turns and tool schemas of questions."""
    chat = make_protocol(load_tokenizer(settings.model), settings.protocol, env, vllm_call_reader)
    if isinstance(chat, NativeProtocol) and (otherwise := chat.served_otherwise()):
        logger.warning(otherwise)
    if settings.uses_retrieval and "a step" not in chat.retrieved("a step").text:
        raise ValueError(
            "protocol.format = 'native': the model's chat template leaves out a user turn behind a result, as which a "
            "retrieved step is shown; set protocol.format to 'tags', or num_hybrid to 0"
        )
    for question in questions:
        if question.turns or question.schemas:
            try:
                chat.prompt_ids(question.text, question)
            except ValueError as error:
                raise ValueError(f"the question {question.id!r}: {error}") from error


def _check_warm_start(warm_start: WarmStartSettings, source: QuestionSource) -> None:
    asked = source.over(warm_start.env_config)
    if warm_start.traces == "expert":
        asked.env_maker()().close()
    check_traces(warm_start.traces, "warm_start.traces", asked)


def check_traces(traces: str, key: str, source: QuestionSource) -> None:
    """Raise ``ValueError`` if ``key`` names trajectories that do not exist."""
    if traces == "expert":
        source.expert_trajectories(traces, key)
    elif not Path(traces).is_file():
        raise ValueError(
            f"{key} = {traces!r}: no such file; give a .jsonl or .jsonl.gz of trajectories, or 'expert' for the environment's "
            "own"
        )


def _check_evaluation_config(config: RAPOConfig) -> None:
    """Refuse ``evaluation_config`` if training env runners evaluate, as they do not read it; otherwise check its keys."""
    if not config.evaluation_config:
        return
    if not config.evaluation_num_env_runners:
        raise ValueError(
            "evaluation_config with evaluation_num_env_runners = 0: evaluation asks the engines that train, which have their "
            "own settings; set evaluation_num_env_runners to 1 or more, or leave evaluation_config out"
        )
    config.get_evaluation_config_object().validate()


def _check_evaluation(config: RAPOConfig) -> None:
    available = len(config.question_source.questions("test"))
    if not isinstance(config.evaluation_duration, int) or not 1 <= config.evaluation_duration <= available:
        raise ValueError(
            f"evaluation_duration = {config.evaluation_duration!r}: must be a number of held-out questions between 1 and "
            f"{available}, which is what env {config.env!r} has"
        )


def _check_buffer(settings: BufferSettings) -> None:
    from rapo_rllib.buffer.embedder import check_embedder
    from rapo_rllib.buffer.maker import URI_KEY
    from rapo_rllib.milvus.address import checked_uri

    checked_uri(settings.uri, URI_KEY)
    check_embedder(settings.embedder, settings.pooling)
    if settings.traces not in (None, "expert") and not Path(settings.traces).is_file():
        raise ValueError(
            f"step_trace_buffer.traces = {settings.traces!r}: no such file; give a .jsonl or .jsonl.gz of traces, 'expert' for "
            "the environment's own, or null for a buffer that exists already"
        )
    if "://" in settings.uri or settings.traces is None:
        _check_milvus(settings)


def _check_milvus(settings: BufferSettings) -> None:
    """Refuse a server that does not answer, and a missing buffer without traces to build it from."""
    from rapo_rllib.buffer.store import StepTraceBuffer
    from rapo_rllib.errors import RetrievalError

    buffer = StepTraceBuffer(settings)
    try:
        found = buffer.exists()
    except RetrievalError as error:
        raise ValueError(f"step_trace_buffer.uri = {settings.uri!r}: {error}") from error
    finally:
        buffer.close()
    if not found and settings.traces is None:
        raise ValueError(
            f"step_trace_buffer.traces = None, but there is no collection {settings.collection!r} at {settings.uri!r}: set it "
            "to a source to build from, or correct uri and collection"
        )

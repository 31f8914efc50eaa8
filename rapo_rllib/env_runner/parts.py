"""Make the parts of an env runner from its settings: engine, rollout loop, and reader of the Step-Trace Buffer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.errors import RetrievalError
from rapo_rllib.models.devices import check_device
from rapo_rllib.models.loading import load_tokenizer, resolve_model
from rapo_rllib.settings import Settings
from rapo_rllib.weights.sync import VLLM_TRANSFERS

if TYPE_CHECKING:
    from rapo_rllib.buffer.layered import LayeredBuffer
    from rapo_rllib.rollout.loop import RolloutLoop
    from rapo_rllib.rollout.retriever import Retriever, TraceSource
    from rapo_rllib.rollout.vllm.engine import VLLMEngine

logger = logging.getLogger(__name__)


def make_engine(settings: Settings, seed: int) -> VLLMEngine:
    """Make a vLLM engine of the policy.

    Args:
        settings: of the job.
        seed: of requests without a seed of their own.
    """
    check_device("num_gpus_per_env_runner", settings.rllib.num_gpus_per_env_runner)
    from rapo_rllib.rollout.vllm.engine import VLLMEngine

    model, rollout, transfer = settings.model, settings.rollout, settings.update.weight_transfer
    return VLLMEngine(
        resolve_model(model.name_or_path),
        settings.engine,
        max_model_len=rollout.max_prompt_tokens + rollout.max_response_tokens,
        seed=seed,
        weight_transfer=transfer if transfer in VLLM_TRANSFERS else None,
        trained=model,
    )


def make_loop(settings: Settings, source: QuestionSource, engine: VLLMEngine, layers: LayeredBuffer | None) -> RolloutLoop:
    """Build the rollout loop on engine, environments and buffer; if ``layers`` is None, it does not retrieve."""
    from rapo_rllib.endpoint.env import AgentEnv
    from rapo_rllib.protocol.make import make_protocol
    from rapo_rllib.protocol.native import NativeProtocol
    from rapo_rllib.rollout.env_calls import EnvPool, check_copies
    from rapo_rllib.rollout.loop import RolloutLoop
    from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader

    make_env = source.env_maker()
    probe = make_env()
    if settings.rollout.branching is not None:
        check_copies(probe)
    chat = make_protocol(load_tokenizer(settings.model), settings.protocol, probe, vllm_call_reader)
    agents = None
    if isinstance(probe.unwrapped, AgentEnv):
        from rapo_rllib.endpoint.loop import Agents

        assert isinstance(chat, NativeProtocol)  # AgentOptions accepts no other format
        agents = Agents(chat, vllm_call_reader)
    probe.close()
    envs = EnvPool(make_env, settings.protocol.answer_tag)
    retriever = None if layers is None else make_retriever(settings, layers)
    return RolloutLoop(engine, chat, envs, settings.rollout, retriever, settings.rllib.seed, agents)


def make_retriever(settings: Settings, source: TraceSource) -> Retriever:
    """Build the retriever that answers histories with step traces from ``source``."""
    from rapo_rllib.rollout.retriever import Retriever

    buffer, noise, seed = settings.buffer, settings.rollout.retrieval_noise, settings.rllib.seed or 0
    return Retriever(
        source, selection=buffer.selection, top_k=buffer.top_k, fallback_text=buffer.fallback_text, noise=noise, seed=seed
    )


def open_layers(settings: Settings) -> LayeredBuffer:
    """Open the Step-Trace Buffer, together with the step traces that the policy adds to it."""
    from rapo_rllib.buffer.layered import LayeredBuffer
    from rapo_rllib.buffer.store import StepTraceBuffer

    buffer = StepTraceBuffer(settings.buffer)
    try:
        buffer.prepare()
    except RetrievalError as error:  # in an env runner that restarts: the driver has checked the buffer before
        logger.warning("the Step-Trace Buffer does not answer; trajectories begin without it: %s", error)
    return LayeredBuffer(buffer)

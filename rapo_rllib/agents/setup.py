"""From a job's config and the name of an agent to an off-policy agent. Flow: ``cli/buffer/build.py`` -> here -> ``agents/``.

http(s)://host:port/v1       an OpenAI-compatible endpoint
a checkpoint folder of ours  its Hugging Face export, in an engine of our own
any other name               a Hugging Face folder or id, or a packaged short name, in an engine of our own
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rapo_rllib.agents.agent import OffPolicyAgent
from rapo_rllib.agents.endpoint import EndpointEngine, EndpointOptions
from rapo_rllib.checkpoints.folder import MANIFEST, check_whole
from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.errors import CheckpointError
from rapo_rllib.models.loading import check_model, load_tokenizer, resolve_model
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.make import MakeReader, make_protocol
from rapo_rllib.protocol.turns import RolloutProtocol, Schema
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.retrieval_failures import RetrievalFailures
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import ModelSettings, RolloutSettings, Settings

AT_ONCE = 2  # trajectories, in multiples of the requests that the engine runs at a time: half of them may wait for tools


@dataclass(frozen=True)
class AgentChoice:
    """The choice of an agent, and how it samples."""

    name: str  # as above
    key: str = field(default="--agent", kw_only=True)  # what the user calls it, for messages
    samples: int = 16  # N, attempts at a question
    temperature: float | None = None  # None: the job's
    seed: int | None = None  # None: the job's; of an endpoint: none is sent, for not all take one
    concurrency: int = 16  # requests at a time, of an endpoint
    retrieval_prob: float = 0.0  # of an evaluation by an engine of our own
    # of an endpoint only
    model: str = ""
    api: str = "chat"
    tokenizer: str | None = None  # of its model, for the api ``completions``
    key_variable: str = "AGENT_API_KEY"
    timeout_s: float = 120.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_endpoint(self) -> bool:
        """Whether it is asked over HTTP."""
        return self.name.startswith(("http://", "https://"))

    @property
    def short_name(self) -> str:
        """The name of its traces: the model's name, or that of its folder; of a checkpoint also its run's."""
        if self.is_endpoint:
            return self.model
        folder = Path(self.name).expanduser()
        if not folder.is_dir():
            return self.name
        folder = folder.absolute()
        return f"{folder.parent.name}/{folder.name}" if (folder / MANIFEST).is_file() else folder.name


def make_agent_factory(
    settings: Settings, source: QuestionSource, choice: AgentChoice, retriever: Retriever | None = None
) -> Callable[[], OffPolicyAgent]:
    """Return a function that makes the agent ready to write; whatever can be wrong with its name is told before.

    Args:
        settings: of the job: protocol, budgets, engine.
        source: its environments.
        choice: which.
        retriever: answers its histories, with the chance that ``choice`` has; not those of an endpoint.

    Raises:
        ValueError: there is no such model, tokenizer or checkpoint. What is returned raises ``EngineError`` if the engine does
            not start.
    """
    rollout = replace(settings.rollout, group_size=choice.samples)
    if choice.temperature is not None:
        rollout = replace(rollout, temperature=choice.temperature)
    if choice.is_endpoint:
        return _endpoint_agent(settings, source, choice, rollout)
    return _vllm_agent(settings, source, choice, rollout, retriever)


def fingerprint_fields(settings: Settings, source: QuestionSource, choice: AgentChoice) -> dict[str, Any]:
    """List what an agent's writing depends on: agent, samples, environment, protocol and budgets."""
    env, rollout, seed = source.env, settings.rollout, settings.rllib.seed
    budgets = ("max_prompt_tokens", "max_response_tokens", "max_step_tokens", "max_tool_calls", "max_steps")
    agent = ("name", "model", "api", "samples")
    given = settings.rllib.env_config or {}
    options = {key: value for key, value in source.options.items() if key != "protocol" or key in given}
    found = {
        **{name: getattr(choice, name) for name in agent},
        "seed": seed if choice.seed is None and not choice.is_endpoint else choice.seed,
        "temperature": rollout.temperature if choice.temperature is None else choice.temperature,
        "env": f"{env.__module__}.{env.__qualname__}" if isinstance(env, type) else env,
        "env_config": options,
        "protocol": asdict(settings.protocol),
        **{name: getattr(rollout, name) for name in budgets},
        **(_of_endpoint(settings, choice) if choice.is_endpoint else _of_engine(settings, choice)),
    }
    as_json: dict[str, Any] = json.loads(json.dumps(found, sort_keys=True, default=str))
    return as_json


def _of_endpoint(settings: Settings, choice: AgentChoice) -> dict[str, Any]:
    return {"extra": choice.extra, "tokenizer": choice.tokenizer, "budgets_in_tokens_of": settings.model.name_or_path}


def _of_engine(settings: Settings, choice: AgentChoice) -> dict[str, Any]:
    manifest = Path(choice.name).expanduser() / MANIFEST  # holds the sums of all files of the checkpoint
    checkpoint = hashlib.sha256(manifest.read_bytes()).hexdigest()[:16] if manifest.is_file() else None
    engine = {name: getattr(settings.engine, name) for name in ("dtype", "extra")}
    return {"engine": engine, "checkpoint": checkpoint}


def policy_folder(name: str, key: str = "--agent") -> str:
    """The Hugging Face export of one of our checkpoints; any other name as it is.

    Raises:
        ValueError: the checkpoint has no export, or is damaged.
    """
    folder = Path(name).expanduser()
    if not any((folder / file).is_file() for file in (MANIFEST, "rllib_checkpoint.json")):
        return name
    if not (folder / "policy" / "config.json").is_file():
        raise ValueError(
            f"{key}: the checkpoint {name!r} was written without its policy as a Hugging Face folder "
            "(export_with_checkpoints: false). Write it by RAPO.from_checkpoint(...).export_policy(FOLDER), and name that."
        )
    try:
        check_whole(folder)
    except CheckpointError as error:
        raise ValueError(f"{key}: {error}") from error
    return str(folder / "policy")


def _vllm_agent(
    settings: Settings, source: QuestionSource, choice: AgentChoice, rollout: RolloutSettings, retriever: Retriever | None
) -> Callable[[], OffPolicyAgent]:
    trusted = settings.model.trust_remote_code
    model = ModelSettings(name_or_path=policy_folder(choice.name, choice.key), trust_remote_code=trusted)
    check_model(model.name_or_path, key=choice.key)

    if settings.protocol.format != "tags":  # those take any model
        protocol_of_agent(settings, source, model)

    def opened() -> OffPolicyAgent:
        from rapo_rllib.rollout.vllm.engine import VLLMEngine
        from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader

        path, seed = resolve_model(model.name_or_path), settings.rllib.seed if choice.seed is None else choice.seed
        chat = protocol_of_agent(settings, source, model, vllm_call_reader)
        engine_settings = replace(settings.engine, sleep=False)
        longest = rollout.max_prompt_tokens + rollout.max_response_tokens
        engine = VLLMEngine(path, engine_settings, max_model_len=longest, seed=seed or 0)
        at_once = AT_ONCE * engine_settings.max_num_seqs
        uri, then = settings.buffer.uri, "run the same command again"
        failures = RetrievalFailures(uri, then)
        counted = (retriever, choice.retrieval_prob, lambda stats: failures.add([stats]))
        envs = EnvPool(source.env_maker(), chat.settings.answer_tag)
        return OffPolicyAgent(engine, chat, envs, rollout, at_once, seed, *counted)

    return opened


def _endpoint_agent(
    settings: Settings, source: QuestionSource, choice: AgentChoice, rollout: RolloutSettings
) -> Callable[[], OffPolicyAgent]:
    if settings.protocol.format != "tags":
        raise ValueError(
            f"protocol.format = {settings.protocol.format!r} with {choice.key} = {choice.name!r}: an endpoint writes in tags; "
            "run this with a job whose protocol.format is 'tags' (step traces are kept in tags in any case)"
        )
    asked = (choice.name, choice.model, choice.api, choice.key_variable, choice.timeout_s)
    named_by = "--agent, --agent-model" if choice.key == "--agent" else choice.key
    options = EndpointOptions(*asked, extra=choice.extra, named_by=named_by)
    theirs = settings.model  # of the prompt; messages need none
    if choice.api == "completions":
        if choice.tokenizer is None:
            raise ValueError(
                "--agent-tokenizer is missing: --agent-api completions needs the tokenizer of the endpoint's model (a folder "
                "or a Hugging Face id), whose chat template makes the prompt"
            )
        theirs = ModelSettings(name_or_path=choice.tokenizer)
        check_model(choice.tokenizer, key="--agent-tokenizer")

    def opened() -> OffPolicyAgent:
        protocol, (tags, schemas) = settings.protocol, offered_tools(source)
        ours = ChatProtocol(load_tokenizer(settings.model), protocol, tags, schemas)
        prompts = ChatProtocol(load_tokenizer(theirs), protocol, tags, schemas)
        engine = EndpointEngine(options, prompts, ours, choice.concurrency)
        envs = EnvPool(source.env_maker(), protocol.answer_tag)
        budgets = replace(rollout, tool_workers=max(rollout.num_tool_workers, choice.concurrency))
        return OffPolicyAgent(engine, ours, envs, budgets, choice.concurrency, choice.seed)

    return opened


def protocol_of_agent(
    settings: Settings, source: QuestionSource, model: ModelSettings, make_reader: MakeReader | None = None
) -> RolloutProtocol:
    """The protocol of an agent with the tokenizer of ``model``. ``ValueError`` where there can be none."""
    env = source.env_maker()()
    try:
        return make_protocol(load_tokenizer(model), settings.protocol, env, make_reader)
    finally:
        env.close()


def offered_tools(source: QuestionSource) -> tuple[tuple[str, ...], list[Schema]]:
    """Tags of the tools that the job's environment offers, and the schemas of those that have one."""
    env = source.env_maker()()
    try:
        return tuple(getattr(env.unwrapped, "tool_tags", ())), list(getattr(env.unwrapped, "tool_schemas", ()))
    finally:
        env.close()

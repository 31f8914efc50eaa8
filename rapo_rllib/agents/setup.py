"""Make an off-policy agent from a job's settings and the agent's name, and list what its answers depend on.

http(s)://host:port/v1#MODEL  an OpenAI-compatible endpoint
a checkpoint folder of ours   its Hugging Face export, in an engine of our own
any other name                a Hugging Face folder or id, or a packaged short name, in an engine of our own
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rapo_rllib.agents.agent import OffPolicyAgent
from rapo_rllib.agents.endpoint import EndpointEngine, EndpointOptions
from rapo_rllib.checkpoints.folder import MANIFEST, check_whole
from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.errors import CheckpointError
from rapo_rllib.models.loading import check_model, resolve_model
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.retriever import RetrievalFailures, Retriever
from rapo_rllib.settings import ModelSettings, RolloutSettings, Settings

AT_ONCE = 2  # trajectories under way for each request that the engine can run: half of them may wait for tools
_BUDGETS = ("max_prompt_tokens", "max_response_tokens", "max_step_tokens", "max_tool_calls", "max_steps")


@dataclass(frozen=True)
class AgentChoice:
    """The choice of an agent, and how it samples."""

    name: str  # in one of the forms above
    samples: int = 16  # N, attempts at a question
    temperature: float | None = None  # None: the job's
    seed: int | None = None  # None: the job's, or 0; for an endpoint: none is sent, as not all take one
    retrieval_prob: float = 0.0  # of an evaluation by an engine of our own
    endpoint: EndpointOptions | None = None  # None: an engine of our own
    option: str = "MODEL"  # of the command line, for messages

    @property
    def short_name(self) -> str:
        """The name of the model or its folder; for a checkpoint, with the name of its run."""
        if self.endpoint is not None:
            return self.endpoint.model
        folder = Path(self.name).expanduser()
        if not folder.is_dir():
            return self.name
        folder = folder.absolute()
        return f"{folder.parent.name}/{folder.name}" if (folder / MANIFEST).is_file() else folder.name

    def seed_in(self, settings: Settings) -> int | None:
        """Return the sampling seed for the settings of a job."""
        return self.seed if self.seed is not None or self.endpoint else settings.rllib.seed or 0

    def rollout_in(self, settings: Settings) -> RolloutSettings:
        """Return the rollout settings of a job with this agent's attempts and temperature."""
        rollout = replace(settings.rollout, group_size=self.samples)
        return rollout if self.temperature is None else replace(rollout, temperature=self.temperature)


def split_endpoint(name: str) -> tuple[str, str] | None:
    """Split an endpoint's name into address and model; None if ``name`` is not of an endpoint."""
    address, _, model = name.partition("#")
    return (address, model) if name.startswith(("http://", "https://")) else None


def answer_settings(settings: Settings, source: QuestionSource, choice: AgentChoice) -> dict[str, Any]:
    """List the settings that an agent's answers depend on, as JSON values: agent, sampling, environment, protocol, budgets."""
    env, rollout = source.env, choice.rollout_in(settings)
    given = settings.rllib.env_config or {}
    found: dict[str, Any] = {
        "name": choice.name,
        "samples": choice.samples,
        "seed": choice.seed_in(settings),
        "temperature": rollout.temperature,
        "env": f"{env.__module__}.{env.__qualname__}" if isinstance(env, type) else env,
        "env_config": {key: value for key, value in source.options.items() if key != "protocol" or key in given},
        "protocol": asdict(settings.protocol),
        **{name: getattr(rollout, name) for name in _BUDGETS},
    }
    if choice.endpoint is not None:
        found |= {"extra": choice.endpoint.extra, "budgets_in_tokens_of": settings.model.name_or_path}
    else:
        manifest = Path(choice.name).expanduser() / MANIFEST  # holds the sums of all files of the checkpoint
        found["checkpoint"] = hashlib.sha256(manifest.read_bytes()).hexdigest()[:16] if manifest.is_file() else None
        found["engine"] = {name: getattr(settings.engine, name) for name in ("dtype", "extra")}
    as_json: dict[str, Any] = json.loads(json.dumps(found, sort_keys=True, default=str))
    return as_json


def make_agent_factory(
    settings: Settings, source: QuestionSource, choice: AgentChoice, retriever: Retriever | None = None
) -> Callable[[], OffPolicyAgent]:
    """Check the agent's name, and return a function that makes the agent.

    Args:
        settings: of the job: protocol, budgets, engine.
        source: environments of the job.
        choice: name of the agent, and how it samples.
        retriever: answers histories with the chance ``choice.retrieval_prob``; an endpoint does not use it.

    Raises:
        ValueError: there is no such model or checkpoint. The returned function raises ``EngineError`` if no engine starts.
    """
    if choice.endpoint is not None:
        return _endpoint_agent(settings, source, choice, choice.endpoint)
    return _vllm_agent(settings, source, choice, retriever)


def policy_folder(name: str, option: str = "MODEL") -> str:
    """Return the Hugging Face folder inside a checkpoint of ours; any other name unchanged. Error messages name ``option``.

    Raises:
        ValueError: the checkpoint has no export, or is damaged.
    """
    folder = Path(name).expanduser()
    if not any((folder / file).is_file() for file in (MANIFEST, "rllib_checkpoint.json")):
        return name
    if not (folder / "policy" / "config.json").is_file():
        raise ValueError(
            f"the checkpoint {name!r} was written without its policy as a Hugging Face folder "
            "(export_with_checkpoints: false). Write it by RAPO.from_checkpoint(...).export_policy(FOLDER), and name that."
        )
    try:
        check_whole(folder)
    except CheckpointError as error:
        raise ValueError(f"{option}: {error}") from error
    return str(folder / "policy")


def _vllm_agent(
    settings: Settings, source: QuestionSource, choice: AgentChoice, retriever: Retriever | None
) -> Callable[[], OffPolicyAgent]:
    trusted, rollout, seed = settings.model.trust_remote_code, choice.rollout_in(settings), choice.seed_in(settings)
    model = ModelSettings(name_or_path=policy_folder(choice.name, choice.option), trust_remote_code=trusted)
    check_model(model.name_or_path, key=choice.option)
    if settings.protocol.format != "tags":  # tags work with any model
        source.protocol(replace(settings, model=model))

    def opened() -> OffPolicyAgent:
        from rapo_rllib.rollout.vllm.engine import VLLMEngine

        chat = source.protocol(replace(settings, model=model))
        engine_settings = replace(settings.engine, sleep=False)
        longest = rollout.max_prompt_tokens + rollout.max_response_tokens
        engine = VLLMEngine(resolve_model(model.name_or_path), engine_settings, max_model_len=longest, seed=seed or 0)
        failures = RetrievalFailures(settings.buffer.uri, "run the same command again", patience_s=None)
        counted = (retriever, choice.retrieval_prob, lambda stats: failures.add([stats]))
        envs = EnvPool(source.env_maker(), chat.settings.answer_tag)
        return OffPolicyAgent(engine, chat, envs, rollout, AT_ONCE * engine_settings.max_num_seqs, seed, *counted)

    return opened


def _endpoint_agent(
    settings: Settings, source: QuestionSource, choice: AgentChoice, endpoint: EndpointOptions
) -> Callable[[], OffPolicyAgent]:
    if settings.protocol.format != "tags":
        raise ValueError(
            f"protocol.format = {settings.protocol.format!r} with {choice.name!r}: an endpoint writes in tags; "
            "run this with a job whose protocol.format is 'tags' (step traces are kept in tags in any case)"
        )

    def opened() -> OffPolicyAgent:
        chat = source.protocol(settings)
        assert isinstance(chat, ChatProtocol)  # of tags
        envs, rollout = EnvPool(source.env_maker(), chat.settings.answer_tag), choice.rollout_in(settings)
        budgets = replace(rollout, tool_workers=max(rollout.num_tool_workers, endpoint.concurrency))
        return OffPolicyAgent(EndpointEngine(endpoint, chat), chat, envs, budgets, endpoint.concurrency, choice.seed)

    return opened

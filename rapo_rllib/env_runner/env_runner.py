"""``RAPOEnvRunner``: one vLLM engine, text environments and the Step-Trace Buffer behind RLlib's env runner interface.

It routes: rollouts are ``rollout/loop.py``'s, retrieval is ``buffer/``'s. Errors of a single trajectory never leave
``sample()``; an engine that breaks does, and RLlib restarts the runner.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.typing import StateDict

from rapo_rllib.buffer.layered import BufferView
from rapo_rllib.env_runner.callbacks import call_episode_callbacks
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.errors import RetrievalError
from rapo_rllib.models.hardware import return_free_memory
from rapo_rllib.models.loading import load_tokenizer, resolve_model
from rapo_rllib.rollout.unaided import add_unaided
from rapo_rllib.settings import Settings
from rapo_rllib.types import Question
from rapo_rllib.weights.packing import unpack_weights
from rapo_rllib.weights.publisher import Publication, this_node
from rapo_rllib.weights.sync import VLLM_TRANSFERS, Confirmation, EngineName, LoadFailure

logger = logging.getLogger(__name__)

COMPONENT_RL_MODULE = "rl_module"


class RAPOEnvRunner(EnvRunner, Checkpointable):
    """Samples groups of trajectories with the policy it was last given."""

    config: Any  # a RAPOConfig, which stands above

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        # an env runner never trains, and the learner beside a local one sets its own number of threads
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.module = None
        self._unique = uuid.uuid4().hex
        self.engine = self._make_engine()
        self._layers: Any = None  # what it reads of the Step-Trace Buffer, where it retrieves
        self.loop = self._make_loop()
        self._callbacks = [cls() for cls in _callback_classes(self.settings.rllib.callbacks_class)]

    @property
    def settings(self) -> Settings:
        """Of this job, frozen."""
        settings: Settings = self.config.settings
        return settings

    def _make_engine(self) -> Any:
        from rapo_rllib.rollout.vllm.engine import VLLMEngine

        model, rollout, transfer = self.settings.model, self.settings.rollout, self.settings.update.weight_transfer
        return VLLMEngine(
            resolve_model(model.name_or_path),
            self.settings.engine,
            max_model_len=rollout.max_prompt_tokens + rollout.max_response_tokens,
            seed=self._seed or 0,
            weight_transfer=transfer if transfer in VLLM_TRANSFERS else None,
            trained=model,
        )

    def _make_loop(self) -> Any:
        from rapo_rllib.protocol.make import make_protocol
        from rapo_rllib.rollout.env_calls import EnvPool, check_copies
        from rapo_rllib.rollout.loop import RolloutLoop
        from rapo_rllib.rollout.vllm.tool_calls import vllm_call_reader

        settings, make_env = self.settings, self.config.question_source.env_maker()
        probe = make_env()
        if settings.rollout.branching is not None:
            check_copies(probe)
        chat = make_protocol(load_tokenizer(settings.model), settings.protocol, probe, vllm_call_reader)
        probe.close()
        envs = EnvPool(make_env, settings.protocol.answer_tag)
        return RolloutLoop(self.engine, chat, envs, settings.rollout, self._make_retriever(), seed=settings.rllib.seed)

    def _make_retriever(self) -> Any:
        if not self.settings.uses_retrieval or self.config.in_evaluation:
            return None
        from rapo_rllib.buffer.layered import LayeredBuffer
        from rapo_rllib.buffer.store import StepTraceBuffer
        from rapo_rllib.env_runner.retrieval import make_retriever

        buffer = StepTraceBuffer(self.settings.buffer)
        try:
            buffer.prepare()
        except RetrievalError as error:  # of a runner that restarts meanwhile: the driver has found the buffer before
            logger.warning("the Step-Trace Buffer does not answer; trajectories begin without it: %s", error)
        self._layers = LayeredBuffer(buffer)
        return make_retriever(self.settings, self._layers)

    @property
    def policy_version(self) -> int:
        """Version of the weights that the engine holds."""
        return int(self.engine.policy_version)

    def load_policy(self, publication: Publication, sequences: Sequence[Sequence[int]]) -> Confirmation | LoadFailure:
        """Take new weights; returns what the engine then holds: its version, and its logprobs of fixed sequences.

        Errors are returned, as RLlib would end this process without telling anybody why.
        """
        start = time.perf_counter()
        try:
            publication.load_into(self.engine)
            seconds = time.perf_counter() - start
            return_free_memory()
            scores = self.engine.score(sequences)
        except Exception as error:
            logger.exception("weight version %d could not be loaded", publication.version)
            return LoadFailure(self.engine_name(), publication.version, f"{type(error).__name__}: {error}")
        loaded = self.engine.loaded
        return Confirmation(
            self.policy_version, scores, seconds, self.engine_name(), loaded.received, loaded.base, loaded.compared_share
        )

    def engine_name(self) -> EngineName:
        """The name of this engine; after a restart another."""
        shown = f"env runner {self.worker_index} on {platform.node()}" if self.worker_index else "the driver's engine"
        return EngineName(shown, self._unique, this_node())

    def call_engine(self, method: str, arguments: Mapping[str, Any]) -> None:
        """One step of vLLM's own weight transfer; the learner drives it."""
        self.engine.call_workers(method, arguments)

    def sleep(self) -> None:
        """Free the engine's GPU memory while the learner updates."""
        self.engine.sleep()

    def wake(self) -> None:
        """Take it again; weights must follow."""
        self.engine.wake()

    @override(EnvRunner)
    def sample(  # type: ignore[override]
        self,
        *,
        questions: Sequence[Question],
        retrieval_prob: float,
        explore: bool = True,
        group_size: int | None = None,
        buffer_view: BufferView | None = None,
        **kwargs: Any,
    ) -> SampleResult:
        """Roll out every question.

        Args:
            questions: what to roll out, a group each.
            retrieval_prob: chance of a retrieval after a completed step of a hybrid trajectory. Without a default: a job's is a
                schedule that the driver reads, and one that was forgotten would be on-policy unseen.
            explore: False: greedy, without retrieval.
            group_size: trajectories per question; None: the config's.
            buffer_view: what the policy has added to the buffer, and how its traces have fared.
            **kwargs: RLlib's other arguments (``num_timesteps`` and the like) mean nothing here: work is given in questions.
        """
        if buffer_view is not None and self.loop.retriever is not None:
            self._layers.set_view(buffer_view)
            self.loop.retriever.usage, self.loop.retriever.source_weights = buffer_view.usage, buffer_view.source_weights
        groups = self.loop.run(questions, retrieval_prob=retrieval_prob, greedy=not explore, group_size=group_size)
        add_unaided(groups, self.settings.objective.shown_steps, self.loop.chat)
        call_episode_callbacks(self, self._callbacks, groups)
        return SampleResult(groups, [self.loop.stats], [self.get_metrics()])

    @override(EnvRunner)
    def get_metrics(self) -> Any:
        """Return what callbacks have logged; the driver computes the rest from the groups."""
        return self.metrics.reduce()

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, Any]:
        """Text in, text out."""
        spaces = (self.config.observation_space, self.config.action_space)
        return {INPUT_ENV_SPACES: spaces, INPUT_ENV_SINGLE_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """Raise if the engine never started."""
        if self.engine is None:
            raise RuntimeError("the env runner has no engine")

    @override(Checkpointable)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> StateDict:
        """The version of its weights; the weights themselves are the learner's."""
        return {WEIGHTS_SEQ_NO: self.policy_version}

    @override(Checkpointable)
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take weights that RLlib itself pushes (before evaluation, say), whatever their age."""
        modules = state.get(COMPONENT_RL_MODULE)
        if modules is None or state.get(WEIGHTS_SEQ_NO) == self.policy_version:
            return
        if isinstance(modules, ray.ObjectRef):
            modules = ray.get(modules)
        weights = modules.get(DEFAULT_MODULE_ID, modules)
        self.engine.load_weights(unpack_weights(weights), int(state[WEIGHTS_SEQ_NO]))

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments to make another one."""
        return (), {"config": self.config}

    @override(EnvRunner)
    def stop(self) -> None:
        """Stop threads, free the engine, leave the buffer."""
        self.loop.close()
        self.engine.close()
        if self._layers is not None:
            self._layers.close()


def _callback_classes(given: Any) -> list[type]:
    return list(given) if isinstance(given, (list, tuple)) else [given]

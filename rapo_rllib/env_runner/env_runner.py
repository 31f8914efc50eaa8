"""``RAPOEnvRunner``: one vLLM engine, text environments and the Step-Trace Buffer behind RLlib's env runner interface.

It only routes: ``rollout/loop.py`` does the rollouts, ``buffer/`` the retrieval. An error of a single trajectory never leaves
``sample()``; an error of the engine does, and RLlib restarts the env runner.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.typing import StateDict

from rapo_rllib.buffer.layered import BufferView
from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.config.settings import settings_of
from rapo_rllib.env_runner.callbacks import RunnerCallbacks
from rapo_rllib.env_runner.episodes import EpisodeObserver
from rapo_rllib.env_runner.metrics import SampleResult, episode_metrics
from rapo_rllib.env_runner.own_questions import OwnQuestions, missing_episodes
from rapo_rllib.env_runner.parts import make_engine, make_loop, open_layers
from rapo_rllib.env_runner.stream.runner import Answer, Order, RunnerStream
from rapo_rllib.errors import EnvError
from rapo_rllib.models.devices import return_free_memory
from rapo_rllib.monitoring.metrics_log import logged_metrics
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.unaided import add_unaided
from rapo_rllib.types import Question, TrajectoryGroup
from rapo_rllib.weights.publisher import Publication
from rapo_rllib.weights.sync import Confirmation

logger = logging.getLogger(__name__)


class RAPOEnvRunner(EnvRunner, Checkpointable):
    """Env runner that samples groups of trajectories with the weights that it was given last."""

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.settings, self._source = settings_of(vars(self.config)), QuestionSource.of(vars(self.config))
        # an env runner never trains; a learner in the same process sets its own number of threads
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.module = None
        self._unique = uuid.uuid4().hex[:8]
        self.engine = self._make_engine()
        self._layers: Any = None  # its reader of the Step-Trace Buffer; None: it does not retrieve
        self.loop = self._make_loop()
        self._callbacks = RunnerCallbacks(self)
        index, count = max((self.worker_index or 0) - 1, 0), max(self.num_workers or 0, 1)
        self.own_questions = OwnQuestions(self._source, self.settings.rllib.seed or 0, index, count)
        self._stream: RunnerStream | None = None
        self._own_samples = SampleResult()  # of its own questions, not reported by ``get_metrics`` yet
        self._held_out, self._asked_by = False, -1  # _asked_by: version of the weights that last got held-out questions
        self._env_steps = 0  # generated steps that the training has sampled, as last given
        self._retrieval_prob = _first_value(self.settings.rollout.retrieval_prob)

    def _make_engine(self) -> Any:
        return make_engine(self.settings, self._seed or 0)

    def _make_loop(self) -> RolloutLoop:
        if self.settings.uses_retrieval and not self.config.in_evaluation:
            self._layers = open_layers(self.settings)
        return make_loop(self.settings, self._source, self.engine, self._layers)

    @property
    def policy_version(self) -> int:
        """Version of the weights that the engine holds."""
        return int(self.engine.policy_version)

    def load_policy(self, publication: Publication, sequences: Sequence[Sequence[int]]) -> Confirmation | str:
        """Load new weights; return the version that the engine then holds, and its logprobs of ``sequences``.

        An error is returned as a text: if it were raised, RLlib would end this process without a reason.
        """
        start = time.perf_counter()
        try:
            publication.load_into(self.engine.weights)
            seconds = time.perf_counter() - start
            return_free_memory()
            scores = self.engine.score(sequences)
        except Exception as error:
            logger.exception("weight version %d could not be loaded", publication.version)
            return f"{self.engine_name()} could not load it: {type(error).__name__}: {error}"
        return Confirmation(self.policy_version, scores, seconds, self.engine_name())

    def engine_name(self) -> str:
        """Return the name of this engine; a restarted engine has another name."""
        place = f"env runner {self.worker_index} on {platform.node()}" if self.worker_index else "the driver's engine"
        return f"{place} ({self._unique})"

    def call_engine(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Call a method of vLLM's workers: one step of vLLM's own weight transfer, which the learner drives."""
        self.engine.weights.call_workers(method, arguments)

    def sleep(self) -> None:
        """Free the engine's GPU memory while the learner updates."""
        self.engine.weights.sleep()

    def wake(self) -> None:
        """Take the GPU memory again; new weights must be loaded next."""
        self.engine.weights.wake()

    def stream(self, order: Order) -> Answer:
        """Execute an order: begin its questions, continue the groups under way, and return the complete groups.

        If the engine breaks, all groups under way are lost, and the next order begins with none.
        """
        self._env_steps = self._env_steps if order.conditions.env_steps is None else order.conditions.env_steps
        if self._stream is None:
            self._stream = RunnerStream(self, self._observer() if self._callbacks.listens else None)
        try:
            return self._stream.work(order)
        except Exception:
            self._stream = None
            raise

    def set_buffer_view(self, view: BufferView) -> None:
        """Retrieve from the buffer as ``view`` describes it from now on."""
        self._layers.set_view(view)

    @override(EnvRunner)
    def sample(  # type: ignore[override]
        self,
        *,
        questions: Sequence[Question] | None = None,
        retrieval_prob: float | None = None,
        explore: bool | None = None,
        group_size: int | None = None,
        buffer_view: BufferView | None = None,
        env_steps: int | None = None,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> SampleResult | list[SingleAgentEpisode]:
        """Roll out ``questions``; without them, sample episodes as RLlib's env runners do.

        Args:
            questions: rolled out as a group each; the result is a ``SampleResult``. None: the job's training questions in their
                order, or in evaluation the held-out ones, from the first on for each version of the weights; the result is
                then a list of ``SingleAgentEpisode``, without episodes that failed.
            retrieval_prob: chance of a retrieval after a completed step of a hybrid trajectory. Required with ``questions``:
                the driver reads it from a schedule, and a default would hide that it was forgotten. Ignored
                without ``questions``: the last call with questions sets it, at first the schedule's start; 0 in evaluation.
            explore: False: greedy, without retrieval. None: True, except for episodes in evaluation.
            group_size: trajectories per question; None: the config's, except for episodes in evaluation: 1.
            buffer_view: collection of the policy's own step traces, and its version; None: as before.
            env_steps: generated steps that the training has sampled before, for schedules of the reward. None: with
                ``questions`` and in evaluation, schedules are at their ends; else the last value given, at first 0.
            num_timesteps: least number of generated steps to sample; there may be more, as episodes are never cut.
            num_episodes: least number of episodes to sample; groups stay whole, so there may be up to ``group_size - 1`` more.
                If neither number is given: this env runner's share of a training step, or of an evaluation.
            random_actions: refused; an action is a text.
            force_reset: begin again with the first held-out question. Nothing else needs a reset: episodes end with the call.

        Raises:
            ValueError: ``random_actions`` is True, ``questions`` come without ``retrieval_prob``, or both numbers are given.
            EnvError: every episode failed.
        """
        if random_actions:
            raise ValueError("random_actions = True: an action is a text; leave it out")
        if buffer_view is not None and self.loop.retriever is not None:
            self.set_buffer_view(buffer_view)
        if env_steps is not None:
            self._env_steps = env_steps
        elif questions is None and not self.in_evaluation:
            env_steps = self._env_steps
        if questions is None:
            if num_timesteps is not None and num_episodes is not None:
                raise ValueError(f"num_timesteps = {num_timesteps} with num_episodes = {num_episodes}: give one of them")
            wanted = self._share if num_episodes is None else num_episodes
            return self._sample_episodes(wanted, num_timesteps, explore, group_size, force_reset, env_steps)
        if retrieval_prob is None:
            raise ValueError("retrieval_prob is missing: give the chance of a retrieval with questions")
        self._retrieval_prob = retrieval_prob
        observer = self._observer() if self._callbacks.listens else None
        groups = self.loop.run(
            questions,
            retrieval_prob=retrieval_prob,
            greedy=explore is False,
            group_size=group_size,
            env_steps=env_steps,
            observer=observer,
        )
        self._add_unaided(groups)
        if observer is not None:
            self.hand_on(observer.take(groups))
        return SampleResult(groups, [self.loop.stats], [self.metrics.reduce()])

    @property
    def _share(self) -> int:
        """Episodes of this runner in a training step, or in an evaluation."""
        step = self.settings.update.questions_per_step * self.settings.rollout.group_size
        return -(-(self.settings.rllib.evaluation_duration if self.in_evaluation else step) // self.own_questions.num_runners)

    def _sample_episodes(
        self,
        wanted: int,
        timesteps: int | None,
        explore: bool | None,
        group_size: int | None,
        force_reset: bool,
        env_steps: int | None,
    ) -> list[SingleAgentEpisode]:
        held_out = self.in_evaluation
        greedy = held_out if explore is None else not explore
        size = group_size or (1 if held_out else self.settings.rollout.group_size)
        if held_out and (force_reset or self._asked_by != self.policy_version):
            self.own_questions.restart()
            self._asked_by = self.policy_version
        take = self.own_questions.take_held_out if held_out else self.own_questions.take
        chance, sampled, episodes = 0.0 if held_out else self._retrieval_prob, SampleResult(), []
        while missing := missing_episodes(sampled, wanted, timesteps):
            observer = self._observer()
            questions = take(-(-missing // size))
            groups = self.loop.run(
                questions, retrieval_prob=chance, greedy=greedy, group_size=size, env_steps=env_steps, observer=observer
            )
            self._add_unaided(groups)
            sampled.extend(SampleResult(groups, [self.loop.stats]))
            whole = [one for one in observer.take(groups) if one.get_infos(-1)["end"] != "error"]
            if not whole:
                error = groups[0].trajectories[0].error
                raise EnvError(f"every episode of {len(questions)} questions failed ({questions[0].id}, ...): {error}")
            episodes += whole
        self._own_samples.extend(sampled)
        self.hand_on(episodes)
        return episodes

    def _observer(self) -> EpisodeObserver:
        return EpisodeObserver(self._callbacks)

    def _add_unaided(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Add unaided forms to trajectories that retrieved."""
        add_unaided(groups, self.settings.objective.shown_steps, self.loop.chat)

    def hand_on(self, episodes: list[SingleAgentEpisode]) -> None:
        """Call ``on_sample_end`` with complete episodes."""
        self._callbacks.sample_end(episodes)

    @property
    def in_evaluation(self) -> bool:
        """Whether episodes are of held-out questions."""
        return bool(self.config.in_evaluation) or self._held_out

    @contextmanager
    def held_out(self) -> Iterator[None]:
        """Switch a training env runner to held-out questions in a context, where ``get_metrics`` covers only their episodes."""
        before = (self._held_out, self._own_samples)
        self._held_out, self._own_samples = True, SampleResult()
        try:
            yield
        finally:
            self._held_out, self._own_samples = before

    @override(EnvRunner)
    def get_metrics(self) -> Any:
        """Return the metrics that callbacks logged, and those of episodes that were sampled without ``questions``.

        The driver computes the metrics of groups.
        """
        sampled, self._own_samples = [t for t in self._own_samples.trajectories if not t.failed], SampleResult()
        logged = self.metrics.reduce()
        if sampled:
            logged |= logged_metrics(episode_metrics(sampled), sum(len(t.steps) for t in sampled), len(sampled))
        return logged

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, Any]:
        """Return the spaces: text in, text out."""
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
        """Return the version of the weights; the learner keeps the weights themselves."""
        return {WEIGHTS_SEQ_NO: self.policy_version}

    @override(Checkpointable)
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Change nothing: weights come only through ``load_policy``, and are confirmed."""

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments that make another env runner like this one."""
        return (), {"config": self.config}

    @override(EnvRunner)
    def stop(self) -> None:
        """Stop the threads, free the engine and close the connection to the buffer."""
        if self._stream is not None:
            self._stream.close()
        self.loop.close()
        self.engine.close()
        if self._layers is not None:
            self._layers.close()


def _first_value(schedule: Any) -> float:
    """Return the first value of a schedule, or the number itself if it is constant."""
    return float(schedule[0][1] if isinstance(schedule, list | tuple) else schedule)

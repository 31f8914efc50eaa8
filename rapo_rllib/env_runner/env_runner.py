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
from rapo_rllib.rollout.unaided import add_unaided
from rapo_rllib.types import Question, TrajectoryGroup
from rapo_rllib.weights.publisher import Publication
from rapo_rllib.weights.sync import Confirmation

logger = logging.getLogger(__name__)


class RAPOEnvRunner(EnvRunner, Checkpointable):
    """Samples groups of trajectories with the policy it was last given."""

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.settings, self._source = settings_of(vars(self.config)), QuestionSource.of(vars(self.config))
        # an env runner never trains, and the learner beside a local one sets its own number of threads
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.module = None
        self._unique = uuid.uuid4().hex[:8]
        self.engine = self._make_engine()
        self._layers: Any = None  # what it reads of the Step-Trace Buffer, where it retrieves
        self.loop = self._make_loop()
        self._callbacks = RunnerCallbacks(self)
        index, count = max((self.worker_index or 0) - 1, 0), max(self.num_workers or 0, 1)
        self.own_questions = OwnQuestions(self._source, self.settings.rllib.seed or 0, index, count)
        self._stream: RunnerStream | None = None
        self._own_samples = SampleResult()  # of questions of its own; not reported yet
        self._held_out, self._asked_by = False, -1  # the weights that were asked held-out questions last
        self._env_steps = 0  # that the training had sampled, as it was last told
        self._retrieval_prob = _first_value(self.settings.rollout.retrieval_prob)

    def _make_engine(self) -> Any:
        return make_engine(self.settings, self._seed or 0)

    def _make_loop(self) -> Any:
        if self.settings.uses_retrieval and not self.config.in_evaluation:
            self._layers = open_layers(self.settings)
        return make_loop(self.settings, self._source, self.engine, self._layers)

    @property
    def policy_version(self) -> int:
        """Version of the weights that the engine holds."""
        return int(self.engine.policy_version)

    def load_policy(self, publication: Publication, sequences: Sequence[Sequence[int]]) -> Confirmation | str:
        """Take new weights; returns what the engine then holds: its version, and its logprobs of fixed sequences.

        Errors are returned as texts, since RLlib would end this process without a reason.
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
        """Return the name of this engine; after a restart another."""
        place = f"env runner {self.worker_index} on {platform.node()}" if self.worker_index else "the driver's engine"
        return f"{place} ({self._unique})"

    def call_engine(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Take one step of vLLM's own weight transfer; the learner drives it."""
        self.engine.weights.call_workers(method, arguments)

    def sleep(self) -> None:
        """Free the engine's GPU memory while the learner updates."""
        self.engine.weights.sleep()

    def wake(self) -> None:
        """Take it again; weights must follow."""
        self.engine.weights.wake()

    def stream(self, order: Order) -> Answer:
        """Go on with the groups that are under way, and begin others; returns those that are complete.

        An engine that breaks ends the groups: the next order begins anew.
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
        """Read the buffer as the driver has it from now on."""
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
        """Roll out every question; without ``questions`` sample episodes, as RLlib's env runners do.

        Args:
            questions: what to roll out, a group each; the result is a ``SampleResult``. None: the job's own questions, in
                the order of training; held-out ones in evaluation, from the first on for each version of the weights. It is
                a list of ``SingleAgentEpisode``, without those that failed.
            retrieval_prob: chance of a retrieval after a completed step of a hybrid trajectory. With ``questions`` it has no
                default: a job's is a schedule that the driver reads, and one that was forgotten would be on-policy unseen.
                Without: the last that was given, at first the one that a schedule begins with; 0 in evaluation.
            explore: False: greedy, without retrieval. None: False in evaluation, else True.
            group_size: trajectories per question; None: the config's, in evaluation of episodes 1.
            buffer_view: what the policy has added to the buffer, and how its traces have fared.
            env_steps: generated steps that the training has sampled before, for schedules of the reward. None: their ends, with
                ``questions`` and in evaluation; else the last that was given, at first 0.
            num_timesteps: generated steps to sample at least. Episodes are never cut: it may be more.
            num_episodes: episodes to sample at least; whole groups, so there may be up to ``group_size - 1`` more. Neither:
                this runner's share of a training step, or of an evaluation.
            random_actions: refused; an action is a text.
            force_reset: begin with the first held-out question. There is nothing else to reset: episodes end with the call.

        Raises:
            ValueError: ``random_actions``, ``questions`` without ``retrieval_prob``, or both numbers.
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
        how = {"greedy": explore is False, "group_size": group_size, "env_steps": env_steps}
        groups = self._roll_out(questions, observer, retrieval_prob=retrieval_prob, **how)
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
        how = {"retrieval_prob": chance, "greedy": greedy, "group_size": size, "env_steps": env_steps}
        while missing := missing_episodes(sampled, wanted, timesteps):
            observer = self._observer()
            questions = take(-(-missing // size))
            groups = self._roll_out(questions, observer, **how)
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

    def _roll_out(self, questions: Sequence[Question], observer: EpisodeObserver | None, **how: Any) -> list[TrajectoryGroup]:
        """Roll out as ``RolloutLoop.run`` does."""
        groups = self.loop.run(questions, observer=observer, **how)
        add_unaided(groups, self.settings.objective.shown_steps, self.loop.chat)
        return groups

    def hand_on(self, episodes: list[SingleAgentEpisode]) -> None:
        """Tell the callbacks of episodes that are whole."""
        self._callbacks.sample_end(episodes)

    @property
    def in_evaluation(self) -> bool:
        """Whether episodes are of held-out questions."""
        return bool(self.config.in_evaluation) or self._held_out

    @contextmanager
    def held_out(self) -> Iterator[None]:
        """Sample episodes of held-out questions, on an env runner that trains; ``get_metrics`` is of these alone meanwhile."""
        before = (self._held_out, self._own_samples)
        self._held_out, self._own_samples = True, SampleResult()
        try:
            yield
        finally:
            self._held_out, self._own_samples = before

    @override(EnvRunner)
    def get_metrics(self) -> Any:
        """Return what callbacks have logged, and the numbers of episodes that were sampled without ``questions``.

        Of groups the driver computes the rest.
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
        """Return the version of its weights; the weights themselves are the learner's."""
        return {WEIGHTS_SEQ_NO: self.policy_version}

    @override(Checkpointable)
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Leave everything as it is: weights come by ``load_policy`` alone, and are confirmed."""

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments to make another one."""
        return (), {"config": self.config}

    @override(EnvRunner)
    def stop(self) -> None:
        """Stop threads, free the engine, leave the buffer."""
        if self._stream is not None:
            self._stream.close()
        self.loop.close()
        self.engine.close()
        if self._layers is not None:
            self._layers.close()


def _first_value(schedule: Any) -> float:
    """Return the first value of a schedule; a number is its own."""
    return float(schedule[0][1] if isinstance(schedule, list | tuple) else schedule)

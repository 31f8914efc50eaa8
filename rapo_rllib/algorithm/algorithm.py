"""``RAPO``: the RLlib ``Algorithm`` that samples groups, updates the policy and confirms the new weights. It only routes.

cursor --questions--> env runners --groups--> batching --> learners --weights, confirmed--> env runners
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSystem
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_LEARNER_GROUP, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EVALUATION_ITERATION_TIMER,
    EVALUATION_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    TIMERS,
)
from ray.tune.result import TRIAL_INFO

from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.algorithm.off_policy import make_mixing, make_starts, open_buffer
from rapo_rllib.algorithm.run_summary import RunSummary
from rapo_rllib.algorithm.sampling import Sampling
from rapo_rllib.algorithm.trial_files import RunName, keep_not_finite, write_held_out, write_trial_transcripts
from rapo_rllib.algorithm.warm_start import started_from, warm_start
from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.buffer.layered import BufferView
from rapo_rllib.checkpoints.algorithm import AlgorithmCheckpoints, export_policy, located
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics, staleness_metrics
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.envs.unaided_success import UnaidedSuccess
from rapo_rllib.errors import NotFiniteError
from rapo_rllib.evaluation.held_out import evaluate_with_callbacks
from rapo_rllib.models.loading import load_tokenizer
from rapo_rllib.monitoring.metrics_log import logged_metrics
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.settings import Settings
from rapo_rllib.weights.canary import Canary, canary_sequences
from rapo_rllib.weights.sync import SyncReport, WeightSync, sync_metrics


class RAPO(Algorithm):
    """Retrieval-Augmented Policy Optimization (arXiv 2603.03078)."""

    config: RAPOConfig
    metrics: Any
    learner_group: Any
    env_runner_group: Any

    def __repr__(self) -> str:
        return "RAPO"  # Ray puts it before every line on the terminal

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> RAPOConfig:
        """Return the paper's hyper-parameters."""
        return RAPOConfig(algo_class=cls)

    def __init__(self, config: AlgorithmConfig | None = None, *args: Any, **kwargs: Any) -> None:
        # kept, as RLlib drops Tune's trial info: else all trials of a sweep would share a name and a collection of grown traces
        self._tunes_trial = config.get(TRIAL_INFO) if isinstance(config, Mapping) else None
        super().__init__(config, *args, **kwargs)

    @override(Algorithm)
    def setup(self, config: RAPOConfig) -> None:  # type: ignore[override]
        """Check the config, prepare the buffer and the warm start, then start learners and engines."""
        self._trial_info = self._tunes_trial
        self.progress = Progress(self.trial_id)
        self.run_summary = RunSummary()
        config.preflight()
        settings, source = config.settings, config.question_source
        train_questions = source.questions("train")
        self._cursor = QuestionCursor(train_questions, seed=settings.rllib.seed or 0)
        self.test_questions = list(source.questions("test")) if settings.rllib.evaluation_interval else []
        self._weights_lock = threading.RLock()  # held while weights change or are read
        self._buffer: Any = None
        self._buffer_updater: Any = None
        self._evaluated_version: int | None = None  # of the weights that the last evaluation saw
        self._evaluation_s = 0.0  # in this iteration
        if settings.uses_retrieval:
            named = (self.progress, self.run_name, self.test_questions, train_questions)
            self._buffer, self._buffer_updater = open_buffer(settings, source, *named)
        self._warm_start = warm_start(config, self.progress)
        if self._warm_start is not None:
            config = self.config = started_from(config, self._warm_start)
        settings = config.settings
        self._off_policy_mixer = make_mixing(settings, source, self.progress)
        starts, rows = make_starts(settings, source, self.progress, self.test_questions)
        source_of_others = None if self._off_policy_mixer is None else self._off_policy_mixer.source
        self._replay = source_of_others if isinstance(source_of_others, ReplayStore) else None
        unaided = UnaidedSuccess() if settings.rollout.retrieval_by_success else None
        self._sampling = Sampling(settings, self._cursor, self._off_policy_mixer, self._buffer_view, starts, rows, unaided)
        always: dict[str, Any] = {"cursor": self._sampling, "summary": self.run_summary}
        some = {"buffer": self._buffer_updater, "off_policy": self._replay, "starts": starts, "rows": rows, "unaided": unaided}
        self._parts = always | {name: part for name, part in some.items() if part is not None}  # with a state of their own
        engines, learners = max(settings.rllib.num_env_runners, 1), max(settings.rllib.num_learners, 1)
        self.progress.say(f"starting {engines} engine(s) and {learners} learner(s)")
        super().setup(config)
        with_policy = settings.run.export_with_checkpoints
        self._checkpoints = AlgorithmCheckpoints(self.learner_group, self._weights_lock, with_policy)
        self._sampling.start(self.env_runner_group, partial(self.bring_back_env_runners, self.env_runner_group))
        sequences = canary_sequences(load_tokenizer(settings.model))
        exact = settings.engine.dtype == settings.model.dtype == "float32"
        canary = Canary(sequences, exact)
        self._weight_sync = WeightSync(canary, settings.update.weight_transfer, settings.rllib.restart_failed_env_runners)
        self.sync_engines()

    @property
    def settings(self) -> Settings:
        """The job's frozen settings."""
        return self.config.settings

    @property
    def run_name(self) -> RunName:
        """Tune's id of the trial; outside Tune, where Ray calls every run "default", the name of the run's folder."""
        return RunName(Path(self.logdir).name) if self._trial_info is None else RunName(self.trial_id, tunes=True)

    @override(Algorithm)
    def save_to_path(
        self, path: Any = None, *, state: Any = None, filesystem: FileSystem | None = None, use_msgpack: bool = False
    ) -> str:
        """Write a checkpoint, whole or not at all, and return its path. See :class:`AlgorithmCheckpoints`.

        Args:
            path: of the checkpoint's folder, or its address on a remote storage; None: a temporary folder.
            state: refused; a checkpoint is always of the present state.
            filesystem: file system of ``path``; None: found from its address.
            use_msgpack: whether ``algorithm_state`` is written with msgpack in place of pickle.

        Raises:
            ValueError: ``state`` was given.
            CheckpointError: a learner could not write; what was at ``path`` is still there.
        """
        if state is not None:
            raise ValueError("RAPO.save_to_path: state cannot be given; the checkpoint is of the present state")
        save_own = super().save_to_path

        def write_own(folder: Path) -> None:
            own = self.get_state(not_components=[name for name, _ in self.get_checkpointable_components()])
            save_own(folder, state=own, use_msgpack=use_msgpack)

        return self._checkpoints.save(path, filesystem, write_own, self.iteration, self._last_result)

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, filesystem: FileSystem | None = None, **kwargs: Any) -> None:
        """Restore a checkpoint, on any number of learners and env runners; then let every engine confirm its weights.

        Args:
            path: of the checkpoint's folder, or its address on a remote storage.
            *args: RLlib's.
            filesystem: file system of ``path``; None: found from its address.
            **kwargs: RLlib's; with ``component``, ``path`` holds that component alone, as RLlib writes it.

        Raises:
            CheckpointError: the checkpoint is incomplete, is damaged, or holds another model.
            FileNotFoundError: there is nothing at ``path``.
        """
        restore_own = super().restore_from_path

        def read_own(folder: Path) -> int:
            restore_own(folder, *args, **kwargs)
            return self._num_env_steps()

        if kwargs.get("component") is not None:
            filesystem, source = located(path, filesystem)
            restore_own(source, *args, filesystem=filesystem, **kwargs)
        else:
            self._checkpoints.restore(path, filesystem, read_own)
        self._evaluated_version = None  # the same version may now stand for other weights
        self.sync_engines()

    @override(Algorithm)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state together with the states of RAPO's own parts."""
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)
        return {**state, "rapo": {name: part.get_state() for name, part in self._parts.items()}}

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state, so that the same batch comes next; if it holds weights, let every engine confirm them."""
        self._sampling.forget()
        with self._weights_lock:
            super().set_state(state)
            if COMPONENT_LEARNER_GROUP in state:
                self._evaluated_version = None
                self.sync_engines()
        if "rapo" in state:
            for name, part in self._parts.items():
                part.set_state(state["rapo"].get(name))
        self._sampling.reached(self._num_env_steps())

    def export_policy(self, folder: str | Path, merged: bool = True) -> Path:
        """Write the policy as a Hugging Face folder that ``transformers`` and vLLM load, and return the folder.

        With remote learners the folder must be on storage that they share. With LoRA ``merged=False`` writes the adapters
        alone, for ``PeftModel.from_pretrained``.

        Raises:
            ValueError: adapters were asked for, and there are none.
            LearnerError: a learner could not write the policy, or died.
            RuntimeError: the policy was written elsewhere: learners and driver do not share the folder.
        """
        return export_policy(self.settings.model, self.learner_group, folder, merged)

    def _num_env_steps(self) -> int:
        return int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    def sync_engines(self, env_runner_group: Any = None) -> SyncReport:
        """Send the current weights to every engine and wait until each has confirmed them; raises ``WeightSyncError``."""
        group = env_runner_group if env_runner_group is not None else self.env_runner_group
        with self._weights_lock:  # an env runner that restarts during an update waits for whole weights
            report = self._weight_sync.run(self.learner_group, group)
            if group is self.env_runner_group:
                self._sampling.set_version(report.version)
        if report.num_restarts:
            self.progress.say(f"{report.num_restarts} engine(s) could not load the weights, and were restarted with them")
        self._version = report.version
        return report

    @override(Algorithm)
    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Bring restarted env runners back with the current weights."""
        restored: list[int] = env_runner_group.probe_unhealthy_env_runners()
        if not restored:
            return []
        with self._weights_lock:  # a sync that another thread was in may have put them out of service again
            restored = sorted(set(restored) & set(env_runner_group.healthy_worker_ids()))
            if restored:
                self.progress.say(f"env runner(s) {restored} restarted; sending them the current weights")
                self.sync_engines(env_runner_group)
        return restored

    def bring_back_env_runners(self, env_runner_group: Any) -> None:
        """Bring back env runners during an iteration, with the callback that RLlib calls only between two iterations."""
        config = self.config if env_runner_group is self.env_runner_group else self.evaluation_config
        if restored := self.restore_env_runners(env_runner_group):
            self._make_on_env_runners_recreated_callbacks(
                config=config, env_runner_group=env_runner_group, restored_env_runner_indices=restored
            )

    @override(Algorithm)
    def training_step(self) -> None:
        """Sample groups, update, sync."""
        with self._timed("rollout"):
            result = self._sampling.take()
        steps = result.num_env_steps
        values = rollout_metrics(result, self.settings.objective) | result.values
        if self._off_policy_mixer is not None:
            values |= self._off_policy_mixer.metrics(result.groups)
        episodes = len(result.trajectories)
        self.metrics.aggregate([logged_metrics(values, steps, episodes), *result.logged], key=ENV_RUNNER_RESULTS)
        self.run_summary.count(result, values["rollout_s"])
        self.progress.say(
            f"iteration {self.iteration + 1}: sampled {episodes} trajectories in {values['rollout_s']:.1f} s "
            f"({values['tokens_per_s']:.0f} tokens/s, reward {values['episode_return_mean']:.3f}, "
            f"{values['retrieval/count']:.0f} retrievals); updating"
        )
        write_trial_transcripts(self, result.groups)
        result.require_usable()
        batch = TrainingBatch.from_groups(result.groups, self.settings.objective, self.settings.update.num_minibatches)
        lifetime = self._num_env_steps()
        self._all_engines("sleep")
        with self._timed("update"), self._weights_lock:
            self._update(batch, result, lifetime)
        self._sampling.reached(lifetime)
        if self._replay is not None:
            self._replay.remember(result.groups)
        if self._buffer_updater is not None:
            with self._timed("buffer"):
                kept = self._buffer_updater.take([*result.groups, *result.left_out])
            for name, value in kept.items():
                self.metrics.log_value(("buffer", name), value, window=1)
        self._all_engines("wake")
        with self._timed("sync"):
            report = self.sync_engines()
        self._log_sync(report, result)
        self._sampling.end_update()

    def _all_engines(self, method: str) -> None:
        """Put the engines to sleep, or wake them, if ``engine.sleep`` is set."""
        if self.settings.engine.sleep:
            # a function: of the local env runner RLlib only looks up a method that is given by its name
            self.env_runner_group.foreach_env_runner(lambda runner: getattr(runner, method)())

    def _log_sync(self, report: SyncReport, result: SampleResult) -> None:
        for name, value in (sync_metrics(report) | staleness_metrics(result.trajectories, report.version - 1)).items():
            self.metrics.log_value(("sync", name), value, window=1)
        for name in ("groups_dropped", "groups_stale", "questions_again", "env_runners_lost", "groups_under_way"):
            self.metrics.log_value(("sampling", name), getattr(result, name), window=1)

    def _timed(self, phase: str) -> Any:
        return self.metrics.log_time((TIMERS, phase), reduce="mean", window=1)

    def _buffer_view(self) -> BufferView | None:
        return None if self._buffer_updater is None else self._buffer_updater.view()

    def _update(self, batch: TrainingBatch, result: SampleResult, lifetime: int) -> None:
        """Update the policy; if that raises ``NotFiniteError``, write the batch to disk before the training ends."""
        try:
            learned = self.learner_group.update(training_data=batch, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: lifetime})
        except NotFiniteError as error:
            raise keep_not_finite(self, batch, result.groups, error) from error
        self.metrics.aggregate(learned, key=LEARNER_RESULTS)

    @override(Algorithm)
    def step(self) -> dict[str, Any]:
        """Run one iteration. Evaluate the policy before the first one, and after the last that fits into ``time_budget_s``."""
        self._evaluation_s = 0.0
        self.metrics.delete(TIMERS, key_error=False)  # RLlib's timers are moving averages, repeated if nothing was timed
        if self.settings.run.evaluate_before_training and self.test_questions and not self.run_summary.evaluated:
            self.evaluate()
        before = self.run_summary.evaluations
        results = super().step()
        self.run_summary.end_iteration(self.progress.seconds)
        budget = self.settings.run.time_budget_s
        if budget is not None and self.run_summary.expected_end_s > budget:
            results["done"] = True
            if self.test_questions and self._evaluated_version != self._version:
                results[EVALUATION_RESULTS] = self.evaluate()
        if self.run_summary.evaluations == before:
            results.pop(EVALUATION_RESULTS, None)  # RLlib would report an older one
        if self._evaluation_s:
            results.setdefault(TIMERS, {})[EVALUATION_ITERATION_TIMER] = self._evaluation_s
        if self._warm_start is not None:
            results["warm_start"] = {**self._warm_start.facts, "cached": self._warm_start.cached}
        results["rapo"] = self.run_summary.as_dict(self.progress.seconds)
        return results

    def keep_held_out(self, result: SampleResult) -> None:
        """Write the trajectories of an evaluation of the present weights, if ``transcripts`` is set."""
        write_held_out(self, result.groups, self._version)

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Measure held-out accuracy of the current weights; ``parallel_train_future`` is RLlib's and always None.

        Raises:
            ValueError: there is no ``evaluation_interval``.
        """
        if not self.test_questions:
            raise ValueError(
                f"evaluation_interval = {self.settings.rllib.evaluation_interval}: no test questions were read, nor kept out "
                "of the Step-Trace Buffer; to evaluate only when you ask, set a number that the training does not reach"
            )
        before = self.progress.seconds
        self.progress.say(f"evaluating on {min(self.settings.rllib.evaluation_duration, len(self.test_questions))} questions")
        results = evaluate_with_callbacks(self)
        self.run_summary.evaluation_s = self.progress.seconds - before
        self._evaluation_s += self.run_summary.evaluation_s
        self.run_summary.take_evaluation(results.get(ENV_RUNNER_RESULTS, {}))
        self._evaluated_version = self._version
        accuracy = self.run_summary.accuracy_after
        self.progress.say("evaluated" if accuracy is None else f"held-out accuracy {accuracy:.3f}")
        return results

    @classmethod
    @override(Algorithm)
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """Check whether evaluation has env runners of its own; otherwise it runs on the training env runners."""
        return bool(eval_config.evaluation_num_env_runners)

    @override(Algorithm)
    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule | None:
        """Return the policy's module: the local learner's own, or a copy of a remote learner's; None for another id."""
        if module_id != DEFAULT_MODULE_ID:
            return None
        if self.learner_group.is_local:
            module: RLModule = self.learner_group._learner.module[module_id]
            return module
        copied = self.config.get_default_rl_module_spec()
        copied.observation_space, copied.action_space = self.config.observation_space, self.config.action_space
        module = copied.build()
        module.set_state(self.learner_group.get_state(components="learner/rl_module")["learner"]["rl_module"][module_id])
        return module

    @override(Algorithm)
    def cleanup(self) -> None:
        """Stop engines and learners, and close the connection to the buffer."""
        sampling: Sampling | None = getattr(self, "_sampling", None)  # None: setup failed before it
        if sampling is not None:
            sampling.close()
        super().cleanup()
        if getattr(self, "_buffer", None) is not None:
            self._buffer_updater.close()
            self._buffer.close()
            self._buffer = None

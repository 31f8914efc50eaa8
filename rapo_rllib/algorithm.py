"""``RAPO``: RLlib's ``Algorithm`` that samples groups, moves the policy, and confirms the new weights. It routes.

cursor --questions--> env runners --groups--> batching --> learners --weights, confirmed--> env runners
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EVALUATION_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    TIMERS,
)
from ray.rllib.utils.schedules.scheduler import Scheduler

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.config import RAPOConfig
from rapo_rllib.dispatch import sample_questions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.evaluation import evaluate_with_callbacks
from rapo_rllib.metrics_log import logged_metrics
from rapo_rllib.models import load_tokenizer
from rapo_rllib.objective.advantages import has_signal
from rapo_rllib.progress import Progress
from rapo_rllib.question_source import questions
from rapo_rllib.rollout_metrics import SampleResult, rollout_metrics
from rapo_rllib.run_summary import RunSummary
from rapo_rllib.transcripts import write_transcripts
from rapo_rllib.types import Question
from rapo_rllib.weight_sync import SyncReport, canary_sequences, sync_weights


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
        """The paper's hyper-parameters."""
        return RAPOConfig(algo_class=cls)

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        """Check what is cheap to check, make the buffer, then start learners and engines."""
        self.progress = Progress(str(self.trial_id or "local"))
        self.run_summary = RunSummary()
        config.preflight()
        self._cursor = QuestionCursor(questions(config, "train"), seed=config.seed or 0)
        self.test_questions = list(questions(config, "test")) if config.evaluation_interval else []
        self._retrieval_prob = Scheduler(fixed_value_or_schedule=config.retrieval_prob, framework="torch")
        self._buffer: Any = None
        self._evaluated_version: int | None = None  # of the weights that the last evaluation saw
        self._evaluations = 0
        if config.uses_retrieval:
            from rapo_rllib.buffer_setup import open_buffer

            self._buffer = open_buffer(config, self.progress)
        self.progress.say(f"starting {max(config.num_env_runners, 1)} engine(s) and {max(config.num_learners, 1)} learner(s)")
        super().setup(config)
        self._canary = canary_sequences(load_tokenizer(config.model_settings))
        self.sync_engines()

    def sync_engines(self, env_runner_group: Any = None) -> SyncReport:
        """Send the current weights to every engine and wait until each has confirmed them; raises ``WeightSyncError``."""
        group = env_runner_group if env_runner_group is not None else self.env_runner_group
        report = sync_weights(self.learner_group, group, self._canary, self.config.canary_tolerance)
        self._version = report.version
        return report

    @override(Algorithm)
    def restore_env_runners(self, env_runner_group: Any) -> list[int]:
        """Bring restarted env runners back with the current weights."""
        restored: list[int] = env_runner_group.probe_unhealthy_env_runners()
        if restored:
            self.progress.say(f"env runner(s) {restored} restarted; sending them the current weights")
            self.sync_engines(env_runner_group)
        return restored

    @override(Algorithm)
    def training_step(self) -> None:
        """Sample groups, update, sync."""
        with self._timed("rollout"):
            result = self._sample()
        steps = result.num_env_steps
        values = {**rollout_metrics(result), "retrieval_prob": float(self._retrieval_prob.get_current_value())}
        episodes = len(result.trajectories)
        self.metrics.aggregate([logged_metrics(values, steps, episodes), *result.logged], key=ENV_RUNNER_RESULTS)
        self.run_summary.count(result, values["rollout_s"])
        self.progress.say(
            f"iteration {self.iteration + 1}: sampled {episodes} trajectories in {values['rollout_s']:.1f} s "
            f"({values['tokens_per_s']:.0f} tokens/s, reward {values['episode_return_mean']:.3f}, "
            f"{values['retrieval/count']:.0f} retrievals); updating"
        )
        if self.config.transcripts:
            self._write_transcripts(result)
        batch = TrainingBatch.from_groups(result.groups, self.config.objective_settings, self.config.num_minibatches)
        lifetime = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        with self._timed("update"):
            learned = self.learner_group.update(training_data=batch, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: lifetime})
        self.metrics.aggregate(learned, key=LEARNER_RESULTS)
        self._retrieval_prob.update(timestep=int(lifetime))
        with self._timed("sync"):
            report = self.sync_engines()
        self.metrics.log_value(("sync", "weight_version"), report.version, window=1)
        self.metrics.log_value(("sync", "canary_mean"), report.mean_difference, window=1)
        self.metrics.log_value(("sync", "canary_max"), report.max_difference, window=1)

    def _timed(self, phase: str) -> Any:
        return self.metrics.log_time((TIMERS, phase), reduce="mean", window=1)

    def _write_transcripts(self, result: SampleResult) -> None:
        """In the trial's folder; Tune's working directory of a trial is not kept."""
        name = f"iteration_{self.iteration + 1:05d}.jsonl"
        if self._storage is None:
            write_transcripts(f"{self.logdir}/transcripts", name, result.groups)
        else:
            folder = f"{self._storage.trial_fs_path}/transcripts"
            write_transcripts(folder, name, result.groups, self._storage.storage_filesystem)

    def _sample(self) -> SampleResult:
        """A batch of groups; with dynamic sampling, groups without signal are replaced by others."""
        wanted = self.config.questions_per_step
        total = self._roll_out(self._cursor.take(wanted))
        if not self.config.dynamic_sampling:
            return total
        kept, dropped = _with_signal(total), len(total.groups)
        for _ in range(self.config.max_sampling_rounds - 1):
            if len(kept.groups) >= wanted:
                break
            more = self._roll_out(self._cursor.take(wanted - len(kept.groups)))
            dropped += len(more.groups)
            kept.extend(_with_signal(more))
        dropped -= len(kept.groups)
        self.metrics.log_value(("sampling", "groups_dropped"), dropped, window=1)
        return kept if kept.groups else total

    def _roll_out(self, batch: list[Question]) -> SampleResult:
        return sample_questions(
            self.env_runner_group,
            batch,
            restore=lambda: self.restore_env_runners(self.env_runner_group),
            retrieval_prob=float(self._retrieval_prob.get_current_value()),
        )

    @override(Algorithm)
    def step(self) -> dict[str, Any]:
        """One iteration; before the first one the initial policy is evaluated, and within ``time_budget_s`` the last."""
        if self.config.evaluate_before_training and self.test_questions and not self.run_summary.evaluated:
            self.evaluate()
        before = self._evaluations
        results = super().step()
        self.run_summary.end_iteration(self.progress.seconds)
        budget = self.config.time_budget_s
        if budget is not None and self.run_summary.expected_end_s > budget:
            results["done"] = True
            if self.test_questions and self._evaluated_version != self._version:
                results[EVALUATION_RESULTS] = self.evaluate()
        if self._evaluations == before:
            results.pop(EVALUATION_RESULTS, None)  # RLlib would report an older one
        results["rapo"] = self.run_summary.as_dict(self.progress.seconds)
        return results

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Held-out accuracy of the current weights; ``parallel_train_future`` is RLlib's and always None."""
        before = self.progress.seconds
        self.progress.say(f"evaluating on {min(self.config.evaluation_duration, len(self.test_questions))} questions")
        results = evaluate_with_callbacks(self)
        self.run_summary.evaluation_s = self.progress.seconds - before
        self.run_summary.take_evaluation(results[ENV_RUNNER_RESULTS])
        self._evaluated_version = self._version
        self._evaluations += 1
        self.progress.say(f"held-out accuracy {self.run_summary.accuracy_after:.3f}")
        return results

    @classmethod
    @override(Algorithm)
    def _should_create_evaluation_env_runners(cls, eval_config: Any) -> bool:
        """Only when asked: evaluation runs on the training engines otherwise."""
        return bool(eval_config.evaluation_num_env_runners)

    @override(Algorithm)
    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule | None:
        """The policy: the local learner's own, or a copy of a remote one's."""
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

    def export_policy(self, folder: str | Path) -> Path:
        """Write the policy as a Hugging Face folder that ``transformers`` and vLLM load; returns the folder.

        With remote learners the folder must be on storage that they share.

        Raises:
            RuntimeError: no learner could write it.
        """
        target = Path(folder).absolute()
        target.mkdir(parents=True, exist_ok=True)
        results = self.learner_group.foreach_learner(lambda learner: learner.export(str(target)))
        for result in results.result_or_errors:
            result.get()
        if not (target / "config.json").exists():
            raise RuntimeError(f"the policy was not written to {target}: do learners and driver share this folder?")
        return target

    @override(Algorithm)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """RLlib's, and where the data set, the schedules and the summary stand."""
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)
        state["rapo"] = {"cursor": self._cursor.get_state(), "summary": self.run_summary.get_state()}
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the batch that would have come."""
        super().set_state(state)
        if "rapo" in state:
            self._cursor.set_state(state["rapo"]["cursor"])
            self.run_summary.set_state(state["rapo"]["summary"])
        lifetime = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        self._retrieval_prob.update(timestep=int(lifetime))

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's, then every engine confirms the restored weights."""
        super().restore_from_path(path, *args, **kwargs)
        self.sync_engines()

    @override(Algorithm)
    def cleanup(self) -> None:
        """Stop engines and learners, and let go of the buffer."""
        super().cleanup()
        if getattr(self, "_buffer", None) is not None:
            self._buffer.close()
            self._buffer = None


def _with_signal(result: SampleResult) -> SampleResult:
    return SampleResult([group for group in result.groups if has_signal(group.rewards)], result.stats, result.logged)

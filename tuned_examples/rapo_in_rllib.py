"""RAPO as one algorithm among others: PPO beside it, Tune with a search algorithm, and an evaluation by RLlib's own means.

    python tuned_examples/rapo_in_rllib.py

1. ``side_by_side`` trains PPO on CartPole and RAPO on word problems in one process, in turn.
2. ``search`` lets Tune try learning rates and temperatures of RAPO; ``NarrowsDown`` proposes them. One of another
   package (Optuna, HyperOpt, ...) takes its place unchanged.
3. ``median_length`` is a custom evaluation function on nothing but RLlib's ``EnvRunner.sample``: RAPO's env runners give
   episodes as all do, of held-out questions in evaluation.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.tune.search import ConcurrencyLimiter, Searcher

from rapo_rllib import RAPOConfig
from rapo_rllib.monitoring.metrics_log import logged_metrics

METRIC = f"{EVALUATION_RESULTS}/{ENV_RUNNER_RESULTS}/accuracy"


def median_length(algorithm: Any, eval_env_runner_group: Any) -> tuple[dict[str, Any], int, int]:
    """A custom evaluation: accuracy, and how many characters the middle answer has."""
    runner = algorithm.env_runner
    with runner.held_out():
        episodes = runner.sample(num_episodes=algorithm.config.evaluation_duration, force_reset=True)
    lengths = [sum(len(action) for action in episode.get_actions()) for episode in episodes]
    values = {
        "accuracy": statistics.mean(float(episode.get_infos(-1)["correct"]) for episode in episodes),
        "median_length": float(statistics.median(lengths)),
        "num_episodes": float(len(episodes)),
    }
    algorithm.metrics.aggregate([logged_metrics(values)], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    steps = sum(episode.env_steps() for episode in episodes)
    return values, steps, steps


class NarrowsDown(Searcher):
    """Draws from the whole space first, then around the best so far, ever closer.

    Args:
        space: for each key the lower and upper bound of its decimal logarithm.
        seed: of what is drawn.
    """

    def __init__(self, space: dict[str, tuple[float, float]], seed: int = 0) -> None:
        super().__init__(metric=METRIC, mode="max")
        self._space, self._rng = space, random.Random(seed)
        self._asked: dict[str, dict[str, float]] = {}
        self._best: tuple[float, dict[str, float]] | None = None

    def suggest(self, trial_id: str) -> dict[str, float]:
        """The next values to try."""
        width = 0.5 ** len(self._asked)
        exponents = {}
        for key, (low, high) in self._space.items():
            middle = (low + high) / 2 if self._best is None else self._best[1][key]
            reach = (high - low) / 2 * (1.0 if self._best is None else width)
            exponents[key] = min(max(self._rng.uniform(middle - reach, middle + reach), low), high)
        self._asked[trial_id] = exponents
        return {key: 10**exponent for key, exponent in exponents.items()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Note how good they were."""
        if error or not result or METRIC not in result:
            return
        if self._best is None or result[METRIC] > self._best[0]:
            self._best = (result[METRIC], self._asked[trial_id])

    def save(self, checkpoint_path: str) -> None:
        """Nothing is worth it: an interrupted search begins anew."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing was saved."""


ppo = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=0)
    .training(train_batch_size_per_learner=500, num_epochs=2)
    .debugging(seed=0)
)
rapo = (
    RAPOConfig()
    .environment("rapo/word_problems", env_config={"steps": [1, 2]})
    .training(
        model={"name_or_path": "smollm2-135m-instruct", "logits_chunk_size": 128, "gradient_checkpointing": True},
        engine={"max_num_seqs": 64, "kv_cache_gib": 0.5, "enforce_eager": True},
        step_trace_buffer={"uri": "./word_problem_traces.db"},
        questions_per_step=8,
        group_size=8,
        num_hybrid=4,
        max_response_tokens=256,
        max_tokens_per_micro_batch=2048,
        lr=1e-5,
    )
    .evaluation(evaluation_interval=1, evaluation_duration=64, custom_evaluation_function=median_length)
    .debugging(seed=0)
)


def side_by_side(configs: dict[str, AlgorithmConfig], iterations: int) -> dict[str, list[float]]:
    """Mean returns of both, per iteration; they share the process, Ray and nothing else."""
    algorithms: dict[str, Algorithm] = {name: config.copy(copy_frozen=False).build_algo() for name, config in configs.items()}
    returns: dict[str, list[float]] = {name: [] for name in algorithms}
    try:
        for _ in range(iterations):
            for name, algorithm in algorithms.items():
                returns[name].append(algorithm.train()[ENV_RUNNER_RESULTS]["episode_return_mean"])
    finally:
        for algorithm in algorithms.values():
            algorithm.stop()
    return returns


def search(config: RAPOConfig, trials: int, iterations: int, storage_path: str | None = None) -> tune.ResultGrid:
    """Try learning rates from 1e-6 to 1e-4, and temperatures from 0.6 to 1."""
    searcher = NarrowsDown({"lr": (-6.0, -4.0), "temperature": (-0.2, 0.0)})
    return tune.Tuner(
        "RAPO",
        param_space=config,
        tune_config=tune.TuneConfig(search_alg=ConcurrencyLimiter(searcher, max_concurrent=1), num_samples=trials),
        run_config=tune.RunConfig(stop={"training_iteration": iterations}, storage_path=storage_path, verbose=1),
    ).fit()


def main() -> None:
    """One after the other: each has an engine of its own."""
    for name, returns in side_by_side({"PPO": ppo, "RAPO": rapo}, iterations=5).items():
        print(name, " ".join(f"{value:.2f}" for value in returns))
    best = search(rapo, trials=6, iterations=5).get_best_result(METRIC, "max")
    metrics = best.metrics or {}
    print(f"best: lr {metrics['config']['lr']:.1e}, temperature {metrics['config']['temperature']:.2f}")


if __name__ == "__main__":
    main()

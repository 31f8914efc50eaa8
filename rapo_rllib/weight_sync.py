"""New weights to every engine, confirmed before the next sample. DESIGN sections 4 and 5.

RLlib's own sync is fire-and-forget and may be dropped without a word. Here the call waits, every engine reports the version it
holds, and scores a few fixed token sequences, which the learner has scored too: the canary. Stale or partial weights are this
field's most expensive silent bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rapo_rllib.errors import WeightSyncError

Scores = list[list[float]]

_CANARY_TEXTS = (
    "Tom has 3 apples and buys 5 more. How many apples does he have now? <python>3 + 5</python>",
    "The quick brown fox jumps over the lazy dog; then, 7 * 8 = 56 and \\boxed{56}.",
    "def area(width, height):\n    return width * height\n\nprint(area(6, 7))",
)


@dataclass(frozen=True)
class SyncReport:
    """A confirmed sync: the version every engine holds, and how far engine and learner differ on the canary, nats."""

    version: int
    num_engines: int
    mean_difference: float
    max_difference: float


def canary_sequences(tokenizer: Any) -> list[list[int]]:
    """A few fixed token sequences, at most 48 tokens each."""
    return [tokenizer.encode(text, add_special_tokens=False)[:48] for text in _CANARY_TEXTS]


def verify_engine(
    *, version: int, engine_version: int, expected: Scores, scored: Scores, tolerance: float
) -> tuple[float, float]:
    """Mean and largest ``|Δ logprob|`` (nats) between learner and one engine.

    Raises:
        WeightSyncError: the engine holds another version, or the mean is above ``tolerance``.
    """
    if engine_version != version:
        raise WeightSyncError(f"an engine holds weight version {engine_version} after version {version} was sent to it")
    differences = [abs(a - b) for left, right in zip(expected, scored, strict=True) for a, b in zip(left, right, strict=True)]
    mean, largest = sum(differences) / len(differences), max(differences)
    if not mean <= tolerance:  # also when it is not a number
        raise WeightSyncError(
            f"after syncing weight version {version}, engine and learner differ by {mean:.4f} nats on average (at most "
            f"{largest:.4f}) on fixed prompts; canary_tolerance is {tolerance}. The engine holds stale or partial weights."
        )
    return mean, largest


def sync_weights(learner_group: Any, env_runner_group: Any, sequences: Sequence[Sequence[int]], tolerance: float) -> SyncReport:
    """Send the learner's weights to all engines of ``env_runner_group`` and wait until each has confirmed them.

    Raises:
        WeightSyncError: an engine did not confirm, or computes something else than the learner.
    """
    expected = _first_learner(learner_group, sequences)  # before the copy of the weights: their memory would add up
    state = learner_group.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True)
    version = int(state[COMPONENT_LEARNER][WEIGHTS_SEQ_NO])
    weights = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
    if env_runner_group.local_env_runner is not None and not env_runner_group.num_remote_env_runners():
        answers = [env_runner_group.local_env_runner.load_policy(weights, version, sequences)]
    else:
        arguments = {"weights": ray.put(weights), "version": version, "sequences": sequences}
        num_healthy = env_runner_group.num_healthy_remote_workers()
        answers = env_runner_group.foreach_env_runner("load_policy", kwargs=arguments, local_env_runner=False)
        if len(answers) < num_healthy and env_runner_group.num_healthy_remote_workers() == num_healthy:
            raise WeightSyncError(f"{num_healthy - len(answers)} of {num_healthy} engines did not confirm version {version}")
    differences = [
        verify_engine(version=version, engine_version=held, expected=expected, scored=scored, tolerance=tolerance)
        for held, scored in answers
    ]
    means, largest = [mean for mean, _ in differences], [largest for _, largest in differences]
    return SyncReport(version, len(answers), max(means, default=0.0), max(largest, default=0.0))


def _first_learner(learner_group: Any, sequences: Sequence[Sequence[int]]) -> Scores:
    results = learner_group.foreach_learner(lambda learner: learner.score(sequences))
    scores: Scores = next(iter(results.result_or_errors)).get()
    return scores

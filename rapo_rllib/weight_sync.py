"""New weights to every engine, confirmed before the next sample. DESIGN sections 4 and 5.

RLlib's own sync is fire-and-forget and may be dropped without a word. Here the call waits, every engine reports the version it
holds, and scores a few fixed token sequences, which the learner has scored too: the canary. Stale or partial weights are this
field's most expensive silent bug.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.weight_publisher import Publication, this_node

Scores = list[list[float]]
VLLM_TRANSFERS = ("nccl", "ipc")  # vLLM's own, from GPU to GPU
TRANSFERS = ("auto", "object_store", *VLLM_TRANSFERS)

_CANARY_TEXTS = (
    "Tom has 3 apples and buys 5 more. How many apples does he have now? <python>3 + 5</python>",
    "The quick brown fox jumps over the lazy dog; then, 7 * 8 = 56 and \\boxed{56}.",
    "def area(width, height):\n    return width * height\n\nprint(area(6, 7))",
)


@dataclass(frozen=True)
class Confirmation:
    """What an engine holds after a sync: the version of its weights, and its logprobs of the canary sequences."""

    version: int
    scores: Scores
    seconds: float  # of loading


@dataclass(frozen=True)
class SyncReport:
    """A confirmed sync: the version every engine holds, and how far engine and learner differ on the canary, nats."""

    version: int
    num_engines: int
    mean_difference: float
    max_difference: float
    num_bytes: int = 0  # of one copy of the weights
    publish_s: float = 0.0  # until the weights were where engines find them
    load_s: float = 0.0  # of the slowest engine


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


def sync_weights(
    learner_group: Any,
    env_runner_group: Any,
    sequences: Sequence[Sequence[int]],
    tolerance: float,
    transfer: str = "auto",
) -> SyncReport:
    """Give the learner's weights to all engines of ``env_runner_group`` and wait until each has confirmed them.

    Args:
        learner_group: RLlib's.
        env_runner_group: RLlib's.
        sequences: of the canary.
        tolerance: mean |Δ logprob| that the canary allows, nats.
        transfer: one of ``TRANSFERS``; ``auto`` is shared memory on the learner's machine and the object store elsewhere.

    Raises:
        WeightSyncError: an engine did not confirm, or computes something else than the learner.
    """
    expected = _first_learner(learner_group, lambda learner: learner.score(sequences))
    start = time.perf_counter()
    publication = _published(learner_group, env_runner_group, transfer)
    publish_s = time.perf_counter() - start
    answers = _loaded(env_runner_group, publication, sequences)
    differences = [
        verify_engine(
            version=publication.version, engine_version=a.version, expected=expected, scored=a.scores, tolerance=tolerance
        )
        for a in answers
    ]
    return SyncReport(
        publication.version,
        len(answers),
        mean_difference=max((mean for mean, _ in differences), default=0.0),
        max_difference=max((largest for _, largest in differences), default=0.0),
        num_bytes=publication.num_bytes,
        publish_s=publish_s,
        load_s=max((a.seconds for a in answers), default=0.0),
    )


def sync_metrics(report: SyncReport, policy_versions: Sequence[int]) -> dict[str, float]:
    """What is logged about a sync; ``policy_versions`` are those that the batch just trained on was sampled with."""
    staleness = [report.version - 1 - version for version in policy_versions] or [0]
    return {
        "weight_version": report.version,
        "canary_mean": report.mean_difference,
        "canary_max": report.max_difference,
        "mebibytes": report.num_bytes / 2**20,
        "publish_s": report.publish_s,
        "load_s": report.load_s,
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
    }


def _has_remote_runners(env_runner_group: Any) -> bool:
    return env_runner_group.local_env_runner is None or bool(env_runner_group.num_remote_env_runners())


def _published(learner_group: Any, env_runner_group: Any, transfer: str) -> Publication:
    if learner_group.is_local and not _has_remote_runners(env_runner_group):
        publication: Publication = learner_group._learner.hand_over()
        return publication
    if transfer in VLLM_TRANSFERS:
        manager = env_runner_group._worker_manager  # RLlib has no other way to the actors
        handles = [manager.actors()[index] for index in env_runner_group.healthy_worker_ids()]
        sent: Publication = _first_learner(learner_group, lambda learner: learner.send(transfer, handles))
        return sent
    if _has_remote_runners(env_runner_group):
        nodes = set(env_runner_group.foreach_env_runner("node_id", local_env_runner=False))
    else:
        nodes = {this_node()}
    learners_node = _first_learner(learner_group, lambda learner: this_node())
    shared_memory = transfer == "auto" and learners_node in nodes
    object_store = transfer == "object_store" or bool(nodes - {learners_node})
    found: Publication = _first_learner(
        learner_group, lambda learner: learner.publish(shared_memory=shared_memory, object_store=object_store)
    )
    return found


def _loaded(env_runner_group: Any, publication: Publication, sequences: Sequence[Sequence[int]]) -> list[Confirmation]:
    """Let every engine load; raises ``WeightSyncError`` unless all that live answer."""
    if not _has_remote_runners(env_runner_group):
        return [env_runner_group.local_env_runner.load_policy(publication, sequences)]
    arguments = {"publication": publication, "sequences": sequences}
    num_healthy = env_runner_group.num_healthy_remote_workers()
    answers: list[Confirmation] = env_runner_group.foreach_env_runner("load_policy", kwargs=arguments, local_env_runner=False)
    if len(answers) < num_healthy and env_runner_group.num_healthy_remote_workers() == num_healthy:
        missing = num_healthy - len(answers)
        raise WeightSyncError(f"{missing} of {num_healthy} engines did not confirm version {publication.version}")
    return answers


def _first_learner(learner_group: Any, function: Callable[[Any], Any]) -> Any:
    """What ``function`` returns on the first learner; it runs on all of them, as collectives need. Raises what any raised."""
    results = list(learner_group.foreach_learner(function).result_or_errors)
    for result in results:
        if not result.ok:
            raise result.get()
    return results[0].get()

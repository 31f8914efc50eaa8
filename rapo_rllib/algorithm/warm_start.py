"""Warm start: before its first iteration the policy imitates worked steps, once; the resulting model is kept.

trajectories --worked_steps.py--> tokens --digest--> kept already? else --learners, one ImitationBatch a step--> export

The model is kept under a digest of everything that determines it: the tokens, the base model, the settings of the update. A
resumed job, its further trials, and every other job with the same warm start load the kept model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.core import DEFAULT_MODULE_ID

from rapo_rllib.batching.training_batch import imitation_batch
from rapo_rllib.checkpoints.algorithm import export_policy
from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.envs.base import AnyText
from rapo_rllib.errors import NotFiniteError, RequestError
from rapo_rllib.models.loading import cache_folder, resolve_model
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.protocol.worked_steps import choose_shown, worked_tokens
from rapo_rllib.services.json_files import read_json
from rapo_rllib.settings import RolloutSettings, Settings, WarmStartSettings
from rapo_rllib.types import ExpertTrajectory, Trajectory

if TYPE_CHECKING:
    from rapo_rllib.algorithm.config import RAPOConfig

logger = logging.getLogger(__name__)

FACTS = "warm_start.json"
_FACTS_SHAPE = {"num_trajectories": int, "loss_first": float, "loss_last": float}
WARM_UP = 0.05  # share of the optimiser steps in which the learning rate rises
SEED = 0  # of order and shown traces: jobs that differ only in their seed begin with the same model
SAY_S = 10.0  # between two lines of progress


@dataclass(frozen=True)
class WarmStart:
    """The weights that a policy begins with."""

    folder: str  # of the model
    facts: dict[str, Any]  # num_trajectories, num_tokens, seconds, loss_first, loss_last
    cached: bool  # it was there already


def warm_start(config: RAPOConfig, progress: Progress) -> WarmStart | None:
    """Find the kept model that the training starts from, or make and keep it; return None if ``warm_start`` is not set.

    Args:
        config: of the job.
        progress: told what is done.

    Raises:
        ValueError: there is nothing to imitate, or the kept model is damaged.
        NotFiniteError: a loss or a gradient was not finite.
    """
    from filelock import FileLock

    settings = config.settings.warm_start
    if settings is None:
        return None
    config = config.copy(copy_frozen=False)
    config._started_from = None  # set in the config of a checkpoint
    worked = worked_trajectories(config.settings, config.question_source, settings)
    kept = Path(settings.folder).expanduser().absolute() if settings.folder else cache_folder() / "warm_start"
    kept.mkdir(parents=True, exist_ok=True)
    folder = kept / _digest(config.settings, settings, worked)
    with FileLock(f"{folder}.lock"):
        cached = folder.is_dir()
        if not cached:
            partial = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: under the lock no other writes it
            facts = _imitate(config, settings, worked, partial, progress)
            (partial / FACTS).write_text(json.dumps(facts, indent=1))
            partial.rename(folder)
    try:
        facts = read_json(folder / FACTS, _FACTS_SHAPE)
    except (OSError, ValueError) as error:
        raise ValueError(f"warm_start: {error}. Delete {folder}, and it is made again.") from error
    learned = (
        f"{facts['num_trajectories']} trajectories, from {facts['loss_first']:.3f} to {facts['loss_last']:.3f} nats a token"
    )
    progress.say(f"the policy begins with a warm start of {learned}: {'found' if cached else 'kept'} in {folder}")
    return WarmStart(str(folder), facts, cached)


def started_from(config: RAPOConfig, start: WarmStart) -> RAPOConfig:
    """Return a copy of ``config`` whose learners, engines and reference model begin with the model of a warm start."""
    changed = config.copy(copy_frozen=False)
    changed._started_from = start.folder
    changed.freeze()
    return changed


def worked_trajectories(job: Settings, source: QuestionSource, settings: WarmStartSettings) -> list[Trajectory]:
    """Build the trajectories to imitate, in the order of the first epoch.

    Raises:
        ValueError: no trajectory is correct and fits into the budgets.
    """
    chat, rollout, rng = source.protocol(job), job.rollout, random.Random(SEED)
    unwritten: list[str] = []
    found_in = source.over(settings.env_config).expert_trajectories(settings.traces, "warm_start.traces")
    fitting = _fitting(found_in, chat, rollout, unwritten)
    experts = list(islice(fitting, settings.num_trajectories))
    if unwritten:
        logger.warning("warm_start: left out %d trajectories that cannot be written: %s", len(unwritten), unwritten[0])
    if not experts:
        raise ValueError(
            f"warm_start.traces = {settings.traces!r}: no trajectory is correct and fits into max_prompt_tokens = "
            f"{rollout.max_prompt_tokens} and max_response_tokens = {rollout.max_response_tokens}"
        )
    found = []
    for expert, prompt_ids in experts:
        others = [rng.choice(experts)[0] for _ in range(4)]
        shown = choose_shown(expert, others, rng, settings.shown_share, settings.fitting_share)
        worked = worked_tokens(expert, prompt_ids, chat, shown)
        if len(worked.token_ids) > rollout.max_response_tokens:
            worked = worked_tokens(expert, prompt_ids, chat, {})
        found.append(worked)
    rng.shuffle(found)
    return found


def _fitting(
    experts: Iterable[ExpertTrajectory], chat: RolloutProtocol, rollout: RolloutSettings, unwritten: list[str]
) -> Iterator[tuple[ExpertTrajectory, list[int]]]:
    """Yield trajectories with positive reward that fit into the budgets, with prompt tokens; note errors in ``unwritten``."""
    for expert in experts:
        prompt_ids = chat.prompt_ids(expert.question.text, expert.question)
        if expert.reward <= 0 or len(prompt_ids) > rollout.max_prompt_tokens:
            continue
        try:
            num_tokens = len(worked_tokens(expert, [], chat, {}).token_ids)
        except RequestError as error:
            unwritten.append(str(error))
            continue
        if num_tokens <= rollout.max_response_tokens:
            yield expert, prompt_ids


def _digest(job: Settings, settings: WarmStartSettings, worked: Sequence[Trajectory]) -> str:
    """Compute the digest of everything that determines the resulting model."""
    digest = hashlib.sha256()
    decides = {key: value for key, value in asdict(settings).items() if key not in ("folder", "traces", "env_config")}
    model = {key: value for key, value in asdict(job.model).items() if key != "compile"}
    facts = [decides, model, _of_the_update(job), _files(job.model.name_or_path)]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for trajectory in worked:
        digest.update(
            json.dumps([list(trajectory.prompt_ids), trajectory.token_ids, list(map(int, trajectory.kinds))]).encode()
        )
    return digest.hexdigest()[:32]


def _of_the_update(job: Settings) -> list[Any]:
    update = job.update
    return [job.rllib.grad_clip, update.weight_decay, job.rollout.temperature, update.max_tokens_per_micro_batch]


def _files(name_or_path: str) -> list[tuple[str, int, int]]:
    """List names, sizes and times of a model folder's files, so that another model at the same place is told apart."""
    folder = Path(resolve_model(name_or_path))
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*")) if path.is_file()] if folder.is_dir() else []
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def learning_rate(step: int, num_steps: int, peak: float) -> float:
    """Compute the rate of optimiser step ``step`` (from 0): up to ``peak`` over the first 5 %, then linearly towards 0."""
    rising = max(math.ceil(WARM_UP * num_steps), 1)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * (num_steps - step) / max(num_steps - rising + 1, 1)


def _imitate(
    config: RAPOConfig, settings: WarmStartSettings, worked: Sequence[Trajectory], folder: Path, progress: Progress
) -> dict[str, Any]:
    """Train the policy on learners of the warm start's own, write the model to ``folder``, and return facts about it."""
    progress.say(f"warm start: imitating {len(worked)} trajectories")
    alone = config.copy(copy_frozen=False)
    alone.kl_coeff = 0.0  # a reference model would be loaded for nothing
    spaces = {DEFAULT_MODULE_ID: (AnyText(), AnyText())}
    group: Any = None
    began, losses = time.monotonic(), []
    batches = list(_batches(worked, settings))
    try:
        group = alone.build_learner_group(spaces=spaces)
        said = time.monotonic()
        for step, batch in enumerate(batches):
            lr = learning_rate(step, len(batches), settings.lr)
            learned = group.update(training_data=imitation_batch(batch, lr))[0][DEFAULT_MODULE_ID]  # the same on all learners
            losses.append(float(learned["imitation_loss"]))
            if float(learned["num_skipped_steps"]):
                raise NotFiniteError(f"step {step + 1} is not finite (loss {losses[-1]}): lower warm_start.lr = {settings.lr}")
            if time.monotonic() - said > SAY_S:
                said, left = time.monotonic(), (time.monotonic() - began) / (step + 1) * (len(batches) - step - 1)
                progress.say(f"warm start: step {step + 1} of {len(batches)}, {losses[-1]:.3f} nats a token, {left:.0f} s left")
        export_policy(alone.settings.model, group, folder, merged=True)
    finally:
        if group is not None:
            group.shutdown()
    tokens = settings.num_epochs * sum(trajectory.num_trained for trajectory in worked)
    tenth = max(len(losses) // 10, 1)
    return {
        "num_trajectories": len(worked),
        "num_steps": len(losses),
        "num_tokens": tokens,
        "seconds": time.monotonic() - began,
        "loss_first": sum(losses[:tenth]) / tenth,
        "loss_last": sum(losses[-tenth:]) / tenth,
    }


def _batches(worked: Sequence[Trajectory], settings: WarmStartSettings) -> Iterator[Sequence[Trajectory]]:
    for epoch in range(settings.num_epochs):
        order = list(worked)
        if epoch:
            random.Random(f"{SEED}/{epoch}").shuffle(order)
        for start in range(0, len(order), settings.batch_size):
            yield order[start : start + settings.batch_size]

"""Checks of the GPUs that a job's engines and learners ask for, and of how they share them."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from rapo_rllib.settings import EngineSettings, Settings
from rapo_rllib.settings.knobs import build
from rapo_rllib.weights.sync import VLLM_TRANSFERS


def check_gpus(settings: Settings, has_env_runners: bool, in_evaluation: bool) -> None:
    """Refuse a use of GPUs that would crash, or run on unintended devices.

    Args:
        settings: of one job.
        has_env_runners: whether engines have processes of their own.
        in_evaluation: whether these are the settings of the engines that only evaluate.

    Raises:
        ValueError: naming keys, values and the fix.
    """
    _check_transfer(settings, has_env_runners)
    _check_compile(settings)
    _check_workers(settings)
    _check_local_engine(settings, has_env_runners)
    _check_sleep(settings, has_env_runners)
    if not in_evaluation:
        _check_fractions(settings)


def _check_transfer(settings: Settings, has_env_runners: bool) -> None:
    """Refuse vLLM's own weight transfer if the GPUs do not fit it, or with LoRA."""
    transfer, rllib = settings.update.weight_transfer, settings.rllib
    if transfer not in VLLM_TRANSFERS:
        return
    gpus = (rllib.num_gpus_per_env_runner, rllib.num_gpus_per_learner)
    fits = all(0 < count < 1 for count in gpus) if transfer == "ipc" else min(gpus) >= 1
    if not (has_env_runners and fits):
        where = "inside a GPU that engine and learner share" if transfer == "ipc" else "from GPU to GPU, of a process each"
        raise ValueError(
            f"weight_transfer = {transfer!r} goes {where}: set num_env_runners, and num_gpus_per_env_runner and "
            f"num_gpus_per_learner to {'fractions of one' if transfer == 'ipc' else 'whole ones'}, or leave it out"
        )
    if settings.model.lora is not None:
        raise ValueError(
            f"weight_transfer = {transfer!r} with model.lora: vLLM's transfer sends whole weights, and only "
            "adapters are to travel; set weight_transfer to 'auto' or 'object_store'"
        )


def _check_compile(settings: Settings) -> None:
    """Refuse compiled layers without GPUs, as FlexAttention is compiled with them, or with selective checkpointing."""
    model = settings.model
    if not model.compile:
        return
    if not settings.rllib.num_gpus_per_learner:
        raise ValueError("model.compile = True with num_gpus_per_learner = 0: layers are compiled on GPUs only; leave it out")
    if model.gradient_checkpointing == "selective":
        raise ValueError(
            "model.compile = True with model.gradient_checkpointing = 'selective': results are kept by operation, and a "
            "compiled layer is one; set model.gradient_checkpointing to true or false"
        )


def _check_workers(settings: Settings) -> None:
    """Refuse an engine with more or fewer GPUs than workers (Ray shows it the GPUs it asks for), and a learner with several."""
    workers, gpus = settings.engine.tensor_parallel_size, settings.rllib.num_gpus_per_env_runner
    if gpus and gpus != workers and (workers > 1 or gpus > 1):
        raise ValueError(
            f"engine.tensor_parallel_size = {workers} with num_gpus_per_env_runner = {gpus:g}: an engine has one worker on "
            "each of its GPUs; set both to the same number"
        )
    if settings.rllib.num_gpus_per_learner > 1:
        raise ValueError(
            f"num_gpus_per_learner = {settings.rllib.num_gpus_per_learner:g}: a learner computes on one GPU; set it to 1, and "
            "num_learners to the number of GPUs"
        )


def _check_local_engine(settings: Settings, has_env_runners: bool) -> None:
    """Refuse a GPU for an engine in the main process without a learner's GPU there: RLlib asks Ray for the learner only."""
    rllib, alone = settings.rllib, not has_env_runners
    if alone and rllib.num_gpus_per_env_runner and (rllib.num_learners or not rllib.num_gpus_per_learner):
        raise ValueError(
            f"num_gpus_per_env_runner = {rllib.num_gpus_per_env_runner:g} with num_env_runners = 0: Ray gives the main process "
            "no GPU for its engine; set num_env_runners to 1 or more"
        )


def _check_sleep(settings: Settings, has_env_runners: bool) -> None:
    """Refuse ``engine.sleep`` unless engine and learner share a GPU in turn: the learner is to use the freed memory."""
    gpus = (settings.rllib.num_gpus_per_env_runner, settings.rllib.num_gpus_per_learner)
    shared = min(gpus) > 0 and (not has_env_runners or max(gpus) < 1)
    if settings.engine.sleep and (settings.update.max_staleness or not shared):
        raise ValueError(
            "engine.sleep = True is for a GPU that engine and learner share and use in turn: set num_gpus_per_env_runner and "
            "num_gpus_per_learner (fractions of one), leave max_staleness out; or leave engine.sleep out"
        )


class _Engines(NamedTuple):
    """Engines of one kind, with the share of a GPU and of its memory that each takes, and the keys that say so."""

    number: int
    gpus: float
    memory: float
    gpus_key: str = "num_gpus_per_env_runner"
    memory_key: str = "engine.gpu_memory_utilization"


def _engines(settings: Settings) -> tuple[_Engines, _Engines]:
    """Describe the engines of the rollouts, and those that only evaluate, which may have keys of their own."""
    rllib, own = settings.rllib, settings.rllib.evaluation_config or {}
    rollout = _Engines(max(1, rllib.num_env_runners), rllib.num_gpus_per_env_runner, settings.engine.gpu_memory_utilization)
    evaluation = rollout._replace(number=rllib.evaluation_num_env_runners)
    if rollout.gpus_key in own:
        evaluation = evaluation._replace(gpus=own[rollout.gpus_key], gpus_key=f"evaluation_config.{rollout.gpus_key}")
    if own.get("engine"):
        memory = build(EngineSettings, own["engine"]).gpu_memory_utilization
        evaluation = evaluation._replace(memory=memory, memory_key=f"evaluation_config.{rollout.memory_key}")
    if not rllib.num_env_runners and rollout.gpus:  # Ray is asked for the learner only, in whose process this engine is
        rollout = rollout._replace(gpus=rllib.num_gpus_per_learner, gpus_key="num_gpus_per_learner")
    return rollout, evaluation


def _check_fractions(settings: Settings) -> None:
    """Refuse fractions of a GPU that learners would share, or that are too much for one: Ray fills one GPU after the other."""
    learner, learners = settings.rllib.num_gpus_per_learner, max(1, settings.rllib.num_learners)
    if 0 < learner < 1 and learners > 1:
        raise ValueError(
            f"num_gpus_per_learner = {learner:g} with num_learners = {learners}: learners that share a GPU cannot add up their "
            "gradients by NCCL; set num_gpus_per_learner to 1, or num_learners to 1"
        )
    apart = _engines(settings)[0 if settings.rllib.num_env_runners else 1 :]
    sharing = [kind for kind in apart if kind.number and 0 < kind.gpus < 1]
    if sharing and 0 < learner < 1 and sum(kind.number * kind.gpus for kind in sharing) + learner > 1 + 1e-9:
        asked = " + ".join(f"{kind.number} x {kind.gpus:g}" for kind in sharing)
        raise ValueError(
            f"num_gpus_per_env_runner takes {asked} of a GPU, and num_gpus_per_learner {learner:g}: Ray fills one GPU after "
            "the other, so nobody knows which share one; let all add up to one GPU at most, or set all to 1"
        )
    _check_memory(*_engines(settings))


def _check_memory(rollout: _Engines, evaluation: _Engines) -> None:
    """Refuse engines whose memory is too much for one GPU, in any combination that Ray may place on it."""
    kinds = (rollout, evaluation)
    counts = [range(1 + (min(kind.number, int(1 / kind.gpus + 1e-9)) if kind.gpus > 0 else 0)) for kind in kinds]
    fitting = [each for each in product(*counts) if each[0] * rollout.gpus + each[1] * evaluation.gpus <= 1 + 1e-9]
    most = max(fitting, key=lambda each: each[0] * rollout.memory + each[1] * evaluation.memory)
    if most[0] * rollout.memory + most[1] * evaluation.memory > 1 + 1e-9:
        placed = [kind for kind, count in zip(kinds, most, strict=True) if count]
        told = [f"{kind.memory_key} = {kind.memory:g} with {kind.gpus_key} = {kind.gpus:g}" for kind in placed]
        raise ValueError(
            f"{', and '.join(dict.fromkeys(told))}: {sum(most)} engines on one GPU would take all of its memory and more; set "
            f"that of each to at most {int(1000 / sum(most)) / 1000:g}"
        )

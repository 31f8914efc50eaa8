"""A job's processes and what each holds.

RAPOConfig --shape, states, micro batch, engine--> main process, learners, engines, rllib's and Ray's own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rapo_rllib.estimate.engine import Engine, cpu_memory, engine_of, gpu_memory
from rapo_rllib.estimate.micro_batch import MicroBatch, full_row, micro_batch
from rapo_rllib.estimate.parts import Kind, Memory, Part, Parts, Process
from rapo_rllib.estimate.shape import ModelShape, model_shape
from rapo_rllib.estimate.states import (
    ITEMSIZE,
    States,
    gathered_bytes,
    learner_states,
    packed_bytes,
    reference_bytes,
    rounded_copy_bytes,
)
from rapo_rllib.estimate.tokens import Tokens, micro_batches, tokens_per_iteration
from rapo_rllib.settings import Settings

MIB = 2**20
# Measured with a model of 3 M parameters: what imports, threads and Ray's client take in a process, before any tensor.
PYTHON, ENGINE_CODE, CUDA_HOST, CUDA_DEVICE = 520 * MIB, 330 * MIB, 1536 * MIB, 512 * MIB
COMMAND, RAY, EMBEDDER = 450 * MIB, 480 * MIB, 420 * MIB
KEY_BYTES, GRAPH_BYTES = 4 * 384, 2 * 16 * 8  # of a step trace: key of MiniLM, and its links in an HNSW graph


@dataclass(frozen=True)
class Job:
    """The facts that the sizes of one trial follow from."""

    settings: Settings
    shape: ModelShape
    states: States  # of one learner
    passes: MicroBatch
    engine: Engine
    tokens: Tokens
    row_tokens: int

    @property
    def learners(self) -> int:
        """Processes that learn; a local one counts."""
        return max(1, self.settings.rllib.num_learners)

    @property
    def shards(self) -> int:
        """Learners that share weights."""
        return self.learners if self.settings.update.learner_parallelism == "fsdp" else 1


def job_of(settings: Settings, known: Sequence[Job] = ()) -> Job:
    """Sizes of a trial. ``settings`` have been checked; ``known``: jobs whose passes are not run again for the same rows.

    Raises:
        ValueError: the model cannot be run on tensors without data (it decides by what is in them).
    """
    from rapo_rllib.models.loading import model_skeleton

    model, rollout = settings.model, settings.rollout
    skeleton = model_skeleton(model)
    shape = model_shape(skeleton, model.lora)
    tokens = tokens_per_iteration(settings)
    shards = (
        settings.rllib.num_learners if settings.update.learner_parallelism == "fsdp" and settings.rllib.num_learners > 1 else 1
    )
    budget = min(settings.update.max_tokens_per_micro_batch, tokens.learned)
    row = full_row(budget, rollout.max_prompt_tokens, rollout.max_response_tokens, rollout.group_size)
    on_gpu = bool(settings.rllib.num_gpus_per_env_runner)
    same = [job.passes for job in known if (job.settings.model, job.row_tokens) == (model, row.num_tokens)]
    return Job(
        settings,
        shape,
        learner_states(shape, model, shards),
        same[0] if same else micro_batch(skeleton.config, model, row, settings.rollout.temperature),
        engine_of(shape, settings.engine, tokens.longest, on_gpu),
        tokens,
        row.num_tokens,
    )


def processes(job: Job, device_bytes: int | None) -> list[Process]:
    """All that run at once for one trial. ``device_bytes``: of a GPU; None: not known."""
    settings = job.settings
    local_learner, local_engine = settings.rllib.num_learners == 0, settings.rllib.num_env_runners == 0
    found = []
    if not local_learner:
        gpus_each, others = settings.rllib.num_gpus_per_learner, settings.rllib.num_learners - 1
        found.append(Process("first learner" if others else "learner", 1, *_learner(job), gpus_each))
        if others:
            found.append(Process("other learners", others, *_learner(job, first=False), gpus_each))
    if not local_engine:
        found.append(_engine_process("engine", settings.rllib.num_env_runners, job, device_bytes))
    if settings.rllib.evaluation_num_env_runners:
        found.append(_engine_process("engine that evaluates", settings.rllib.evaluation_num_env_runners, job, device_bytes))
    host, gpu = Memory((Part("Python and libraries", PYTHON, Kind.GUESS), *_buffer(job))), None
    gpus, bounds = 0.0, (0, 1.0)
    if local_learner:
        learner, gpu = _learner(job, alone=False)
        host, gpus = host.beside(learner), gpus + settings.rllib.num_gpus_per_learner
    if local_engine:
        engine, engine_gpu = _engine(job, device_bytes)
        host = host.beside(engine).beside(Memory(_kept_by_rllib(job) if local_learner else ()))
        gpu, gpus, bounds = _both(gpu, engine_gpu), gpus + settings.rllib.num_gpus_per_env_runner, _engine_bounds(job)
    name = {(True, True): " with learner and engine", (True, False): " with learner", (False, True): " with engine"}
    return [Process("main" + name.get((local_learner, local_engine), ""), 1, host, gpu, gpus, *bounds), *found]


def once() -> list[Process]:
    """The processes that run once, however many trials there are."""
    return [
        Process("the rllib command", 1, Memory((Part("Python and libraries", COMMAND, Kind.GUESS),))),
        Process("Ray", 1, Memory((Part("its own processes", RAY, Kind.GUESS),))),
    ]


def _learner(job: Job, *, first: bool = True, alone: bool = True) -> tuple[Memory, Memory | None]:
    """On the host, and on a GPU. The ``first`` one hands weights to engines and checkpoints; ``alone``: in its process."""
    settings, model = job.settings, job.settings.model
    base = () if not alone else (Part("Python and libraries", PYTHON, Kind.GUESS),)
    reference = reference_bytes(job.shape, model, settings.objective.kl_coeff, job.shards)
    states = (*job.states.kept, *((Part("reference model", reference),) if reference else ()))
    weights = job.shape.parameters * ITEMSIZE[model.dtype]
    sent = _sent(job) if first else ()
    if not settings.rllib.num_gpus_per_learner:
        return Memory((*base, *states, *sent), _learner_phases(job, writes=first)), None
    loading = {"loading": (Part("model, before it moves to the GPU", weights, Kind.BOUND),)}
    host = Memory((*base, Part("CUDA on the host", CUDA_HOST, Kind.GUESS), *sent), loading)
    return host, Memory((Part("CUDA", CUDA_DEVICE, Kind.GUESS), *states), _learner_phases(job, writes=False))


def _learner_phases(job: Job, writes: bool) -> dict[str, Parts]:
    settings, model = job.settings, job.settings.model
    count = micro_batches(job.tokens, job.row_tokens, job.learners, settings.update.num_minibatches)
    gradients = job.states.gradients * job.shards
    activations = max(job.passes.first - gradients, 0 if count == 1 else job.passes.later)
    update = [Part("gradients", job.states.gradients), Part("activations of a micro batch", activations, Kind.BOUND)]
    if job.shards > 1:
        update.append(Part("gathered weights and gradients", gathered_bytes(job.shape, model), Kind.BOUND))
    phases: dict[str, Parts] = {"update": tuple(update)}
    copy = rounded_copy_bytes(job.shape, model, settings.engine.dtype, job.shards)
    if copy:
        phases["sync"] = (Part("weights rounded as the engine's", copy),)
    if writes:
        phases["checkpoint"] = _packed_weights(job)
    return phases


def _packed_weights(job: Job) -> Parts:
    """The state that RLlib asks a learner for with a checkpoint; from another process also its copy in Ray's object store."""
    size = packed_bytes(job.shape, job.settings.model, ITEMSIZE[job.settings.model.dtype])
    parts = (Part("weights packed for a checkpoint", size),)
    return (*parts, Part("the same in Ray's object store", size)) if job.settings.rllib.num_learners else parts


def _sent(job: Job) -> Parts:
    """Weights for engines in other processes of this machine."""
    settings = job.settings
    if not (settings.rllib.num_env_runners or settings.rllib.evaluation_num_env_runners) or settings.update.weight_transfer in (
        "nccl",
        "ipc",
    ):
        return ()
    if settings.model.lora is not None:
        return (Part("adapters in shared memory", job.shape.adapters * 4),)
    return (Part("weights in shared memory", job.shape.parameters * ITEMSIZE[settings.engine.dtype]),)


def _kept_by_rllib(job: Job) -> Parts:
    """RLlib packs the weights when it starts; the copy stays with a learner and an engine in one process."""
    size = packed_bytes(job.shape, job.settings.model, ITEMSIZE[job.settings.engine.dtype])
    return (Part("weights that RLlib packed at its start", size),)


def _engine(job: Job, device_bytes: int | None) -> tuple[Memory, Memory | None]:
    settings = job.settings.engine
    code = (Part("vLLM", ENGINE_CODE, Kind.GUESS), *_embedder(job))
    if not job.settings.rllib.num_gpus_per_env_runner:
        memory = cpu_memory(job.engine, settings)
        return Memory((*code, *memory.always), memory.phases), None
    host = Memory((*code, Part("CUDA on the host", CUDA_HOST, Kind.GUESS)))
    return host, gpu_memory(job.engine, settings, device_bytes)


def _engine_process(name: str, count: int, job: Job, device_bytes: int | None) -> Process:
    host, gpu = _engine(job, device_bytes)
    base = Memory((Part("Python and libraries", PYTHON, Kind.GUESS),))
    return Process(name, count, base.beside(host), gpu, job.settings.rllib.num_gpus_per_env_runner, *_engine_bounds(job))


def _engine_bounds(job: Job) -> tuple[int, float]:
    """What an engine needs at least of its GPU, and the share that it may take."""
    return (
        (job.engine.least, job.settings.engine.gpu_memory_utilization)
        if job.settings.rllib.num_gpus_per_env_runner
        else (0, 1.0)
    )


def _embedder(job: Job) -> Parts:
    settings = job.settings
    if not settings.uses_retrieval or "://" in settings.buffer.embedder:
        return ()
    return (Part("embedder", EMBEDDER, Kind.GUESS),)


def _buffer(job: Job) -> Parts:
    """Keys and their graph, which the processes of a machine map together."""
    settings = job.settings
    if not settings.uses_retrieval:
        return ()
    buffer = settings.buffer
    grown = buffer.max_grown if buffer.growth != "none" else 0
    size = (buffer.max_traces or 0) + grown
    keys = (Part("keys of the Step-Trace Buffer", size * (KEY_BYTES + GRAPH_BYTES), Kind.BOUND),) if size else ()
    return (*keys, *(_embedder(job) if settings.rllib.num_env_runners else ()))  # a local engine's process has one already


def _both(one: Memory | None, other: Memory | None) -> Memory | None:
    return one.beside(other) if one is not None and other is not None else one or other

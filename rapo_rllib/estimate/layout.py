"""Sizes a job's processes: what each holds on the host and on a GPU, of settings and formulas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rapo_rllib.estimate.memory import (
    FLOAT32,
    ITEMSIZE,
    Engine,
    Part,
    Parts,
    Row,
    engine_of,
    gathered_bytes,
    packed_bytes,
    pass_parts,
    rounded_bytes,
    row_of,
    state_parts,
)
from rapo_rllib.estimate.shape import Shape
from rapo_rllib.milvus.address import is_lite_path
from rapo_rllib.settings import Settings

MIB = 2**20
# Measured with a model of 3 M parameters: what imports, threads and Ray's client take in a process, before any tensor.
PYTHON, VLLM, COMMAND, RAY, EMBEDDER = 520 * MIB, 330 * MIB, 450 * MIB, 480 * MIB, 420 * MIB
CUDA_HOST, CUDA_DEVICE = 1536 * MIB, 512 * MIB  # not measured
OWNER = 230 * MIB  # of a Lite path: measured with Ray imported, but outside of an actor
ROW_BYTES = 13 * 1024  # of a step trace in the owner at its peak: 170,000 with keys of MiniLM and texts of 1,100 characters


@dataclass(frozen=True)
class Process:
    """A kind of process that a job runs."""

    name: str
    count: int  # that run at once
    host: Parts
    gpu: Parts = ()  # of each GPU it uses
    gpus: float = 0.0  # GPUs it uses, perhaps a fraction of one


ALWAYS = (  # however many trials there are
    Process("the rllib command", 1, (Part("Python and libraries", COMMAND),)),
    Process("Ray", 1, (Part("its own processes", RAY),)),
)


@dataclass(frozen=True)
class Job:
    """The facts that the sizes of one trial follow from."""

    settings: Settings
    shape: Shape
    row: Row
    engine: Engine
    trajectories: int  # of an iteration, at most


def at_peak(parts: Parts) -> Parts:
    """Choose those that are there at the peak: without a phase, and of the largest one.

    Example: of 10 bytes always, 5 in ``update``, 4 and 3 in ``sync`` all but the 5.
    """
    sizes: Counter[str] = Counter()
    for part in parts:
        sizes[part.phase] += part.num_bytes if part.phase else 0
    largest = max(sizes, key=sizes.__getitem__, default="")
    return tuple(part for part in parts if part.num_bytes and part.phase in ("", largest))


def peak(parts: Parts) -> int:
    """Add up what is there at the peak."""
    return sum(part.num_bytes for part in at_peak(parts))


def job_of(settings: Settings, shape: Shape) -> Job:
    """Size a trial; ``settings`` have been checked."""
    rollout, update = settings.rollout, settings.update
    prompt, response = rollout.max_prompt_tokens, rollout.max_response_tokens
    trajectories = update.questions_per_step * (rollout.group_size + settings.off_policy.off_policy_trajectories)
    learned = update.questions_per_step * prompt + trajectories * response
    step_tokens = -(-learned // (max(1, settings.rllib.num_learners) * update.num_minibatches))
    row = row_of(update.max_tokens_per_micro_batch, prompt, response, rollout.group_size, step_tokens)
    engine = engine_of(shape, settings.engine, prompt + response, bool(settings.rllib.num_gpus_per_env_runner))
    return Job(settings, shape, row, engine, trajectories)


def processes(job: Job, device: int | None) -> list[Process]:
    """List all that run at once for one trial. ``device``: bytes of a GPU; None: not known."""
    rllib, python = job.settings.rllib, (Part("Python and libraries", PYTHON),)
    (learner, learner_gpu), first = _learner(job), _first_learner(job)
    engine, engine_gpu = _engine(job, device)
    embedder = _embedder(job) if rllib.num_env_runners else ()  # else the engine in the same process has it
    main, found = Process("main", 1, (*python, *embedder)), []
    if not rllib.num_learners:
        main = Process("main with learner", 1, (*main.host, *learner, *first), learner_gpu, rllib.num_gpus_per_learner)
    for name, count, host in (
        ("learner" if rllib.num_learners == 1 else "first learner", min(1, rllib.num_learners), (*python, *learner, *first)),
        ("other learners", rllib.num_learners - 1, (*python, *learner)),
    ):
        if count > 0:
            found.append(Process(name, count, host, learner_gpu, rllib.num_gpus_per_learner))
    for name, count in (("engine", rllib.num_env_runners), ("engine that evaluates", rllib.evaluation_num_env_runners)):
        if count:
            found.append(Process(name, count, (*python, *engine), engine_gpu, rllib.num_gpus_per_env_runner))
    if not rllib.num_env_runners:
        name, gpus = f"{main.name} {'with' if rllib.num_learners else 'and'} engine", main.gpus + rllib.num_gpus_per_env_runner
        main = Process(name, 1, (*main.host, *engine), (*main.gpu, *engine_gpu), gpus)
    return [main, *found]


def shared(job: Job, trials: int = 1) -> list[Process]:
    """List what so many trials at once have together: the command, Ray, and the owner of a Lite path with all step traces."""
    buffer = job.settings.buffer
    if not job.settings.uses_retrieval or not is_lite_path(buffer.uri):
        return list(ALWAYS)
    rows = (buffer.max_traces or 0) + trials * (buffer.max_grown if buffer.growth != "none" else 0)
    parts = (Part("Python and libraries", OWNER), Part("step traces", rows * ROW_BYTES))
    return [Process("owner of the Step-Trace Buffer", 1, parts), *ALWAYS]


def _learner(job: Job) -> tuple[Parts, Parts]:
    """Size any learner, on the host and on a GPU."""
    settings, shape, model, rllib = job.settings, job.shape, job.settings.model, job.settings.rllib
    shards = max(1, rllib.num_learners) if settings.update.learner_parallelism == "fsdp" else 1
    on_gpu, whole = bool(rllib.num_gpus_per_learner), shape.parameters * ITEMSIZE[model.dtype]
    *kept, gradients = state_parts(shape, model, shards)
    if settings.objective.kl_coeff > 0 and model.lora is None:  # with LoRA it is the model without adapters
        kept.append(Part("reference model", whole // shards))
    passes = pass_parts(shape, model, job.row, gradients.num_bytes, on_gpu)
    if shards > 1:
        gathered = gathered_bytes(shape, model)
        passes += tuple(Part("gathered weights", gathered, phase) for phase in dict.fromkeys(part.phase for part in passes))
    rounded = rounded_bytes(shape, model, settings.engine.dtype, shards)
    states = (*kept, *passes, Part("weights rounded as the engine's", rounded, "sync"))
    if not on_gpu:
        return states, ()
    host = (Part("CUDA on the host", CUDA_HOST), Part("model, before it moves to the GPU", whole, "loading"))
    return host, (Part("CUDA", CUDA_DEVICE), *states)


def _first_learner(job: Job) -> Parts:
    """Size what one learner holds on the host for RLlib, and for engines in other processes of this machine."""
    settings, shape, model, rllib = job.settings, job.shape, job.settings.model, job.settings.rllib
    sent = ITEMSIZE[settings.engine.dtype]
    packed = packed_bytes(shape, model, ITEMSIZE[model.dtype])
    parts = [Part("weights packed for a checkpoint", packed, "checkpoint")]
    if rllib.num_learners:
        parts.append(Part("the same in Ray's object store", packed, "checkpoint"))
    elif not rllib.num_env_runners:
        parts.append(Part("weights that RLlib packed at its start", packed_bytes(shape, model, sent)))
    runners = rllib.num_env_runners or rllib.evaluation_num_env_runners
    if runners and settings.update.weight_transfer not in ("nccl", "ipc"):
        size = shape.adapters(model.lora) * FLOAT32 if model.lora else shape.parameters * sent
        parts.append(Part("weights in shared memory", size))
    return tuple(parts)


def _engine(job: Job, device: int | None) -> tuple[Parts, Parts]:
    """Size an engine, on the host and on a GPU, where keys and values take what is left of its share.

    vLLM does not start without room for one longest trajectory: a GPU then needs as much as makes the share large enough.
    """
    settings, engine = job.settings.engine, job.engine
    code, weights = (Part("vLLM", VLLM), *_embedder(job)), Part("engine: weights", engine.weights)
    if not job.settings.rllib.num_gpus_per_env_runner:
        cache = Part("engine: keys and values (engine.kv_cache_gib)", int(settings.kv_cache_gib * 2**30))
        return (*code, weights, cache, Part("engine: one step", engine.step, "rollout")), ()
    longest, share = engine.kv_per_token * engine.longest, settings.gpu_memory_utilization
    room = int(share * (device or 0)) - engine.weights - engine.step
    count = max(0, room) // longest
    name = f"room for {count} of the longest trajectories" if count else "of one longest trajectory"
    cache = Part(f"engine: keys and values, {name}", room if count else longest)
    parts = [weights, cache, Part("engine: one step", engine.step)]
    if device and not count:
        others = sum(part.num_bytes for part in parts) * (1 / share - 1)
        parts.append(Part("not the engine's (engine.gpu_memory_utilization)", int(others)))
    if settings.sleep:  # it has none of it in an update, and takes it again before the sync
        parts = [replace(part, phase=phase) for phase in ("rollout", "sync") for part in parts]
    return (*code, Part("CUDA on the host", CUDA_HOST)), tuple(parts)


def _embedder(job: Job) -> Parts:
    local = job.settings.uses_retrieval and "://" not in job.settings.buffer.embedder
    return (Part("embedder", EMBEDDER),) if local else ()

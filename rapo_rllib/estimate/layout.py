"""Estimate the memory of a job's processes from its settings, and judge whether they fit a machine and its GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rapo_rllib.estimate.memory import (
    ITEMSIZE,
    Part,
    Parts,
    Shape,
    engine_bytes,
    packed_bytes,
    pass_parts,
    row_of,
    state_parts,
    whole_bytes,
)
from rapo_rllib.milvus.address import is_lite_path
from rapo_rllib.settings import Settings

MIB, GIB = 2**20, 2**30
# Memory of imports, threads and Ray's client in a process, before any tensor; measured with a model of 3 M parameters.
PYTHON, VLLM, COMMAND, RAY, EMBEDDER = 520 * MIB, 330 * MIB, 450 * MIB, 480 * MIB, 420 * MIB
CUDA_HOST, CUDA_DEVICE = 1536 * MIB, 512 * MIB  # not measured
OWNER = 230 * MIB  # the process that owns a Lite path: measured with Ray imported, but outside of an actor
ROW_BYTES = 13 * 1024  # of a step trace in the owner at its peak; with 170,000 of 1,100 characters, and keys of MiniLM
ERROR = 0.15  # relative error of an estimate, in either direction: benchmarks/RESULTS.md
ADVICE = (  # the least loss first
    "; what makes it less: engine.sleep, model.gradient_checkpointing: true, a smaller max_tokens_per_micro_batch, "
    "learner_parallelism: fsdp over more learners, model.lora; for an engine a larger tensor_parallel_size"
)
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # cgroup 2 and 1


@dataclass(frozen=True)
class Process:
    """A kind of process that a job runs."""

    name: str
    count: int  # that run at once
    host: Parts
    gpu: Parts = ()  # of each GPU it uses
    gpus: float = 0.0  # GPUs it uses, perhaps a fraction of one


def at_peak(parts: Parts) -> Parts:
    """Select the parts in memory at the peak: those without a phase, and those of the largest phase.

    Example: of 10 bytes without a phase, 5 in ``update``, 4 and 3 in ``sync``, all but the 5.
    """
    sizes: Counter[str] = Counter()
    for part in parts:
        sizes[part.phase] += part.num_bytes if part.phase else 0
    largest = max(sizes, key=sizes.__getitem__, default="")
    return tuple(part for part in parts if part.num_bytes and part.phase in ("", largest))


def peak(parts: Parts) -> int:
    """Add up the bytes of the parts in memory at the peak."""
    return sum(part.num_bytes for part in at_peak(parts))


def processes(settings: Settings, shape: Shape, device: int | None) -> list[Process]:
    """List the processes of one trial with checked settings. ``device``: bytes of a GPU; None: not known."""
    rllib, python, gpus = settings.rllib, Part("Python and libraries", PYTHON), settings.rllib.num_gpus_per_learner
    (learner, learner_gpu), first = _learner(settings, shape), _first_learner(settings, shape)
    engine, engine_gpu = _engine(settings, shape, device)
    main = Process("main", 1, (python, *(_embedder(settings) if rllib.num_env_runners else ())))  # else the engine's have it
    if not rllib.num_learners:
        main = Process("main with learner", 1, (*main.host, *learner, *first), learner_gpu, gpus)
    if not rllib.num_env_runners:
        name = f"{main.name} {'with' if rllib.num_learners else 'and'} engine"
        most = max(main.gpus, rllib.num_gpus_per_env_runner)  # Ray is asked for the process once
        main = Process(name, 1, (*main.host, *engine), (*main.gpu, *engine_gpu), most)
    name = "learner" if rllib.num_learners == 1 else "first learner"
    shards = settings.update.learner_parallelism == "fsdp"  # the first learner alone loads the model, and sends shards
    others = [part for part in learner if not (shards and part.phase == "loading")]
    engines = rllib.num_env_runners + rllib.evaluation_num_env_runners
    found = [
        main,
        Process(name, min(1, rllib.num_learners), (python, *learner, *first), learner_gpu, gpus),
        Process("other learners", rllib.num_learners - 1, (python, *others), learner_gpu, gpus),
        Process("engine", engines, (python, *engine), engine_gpu, rllib.num_gpus_per_env_runner),
        Process("the rllib command", 1, (Part("Python and libraries", COMMAND),)),
        Process("Ray", 1, (Part("its own processes", RAY),)),
    ]
    buffer = settings.buffer
    if settings.uses_retrieval and is_lite_path(buffer.uri):
        rows = (buffer.max_traces or 0) + (buffer.max_grown if buffer.growth != "none" else 0)
        parts = (Part("Python and libraries", OWNER), Part("step traces", rows * ROW_BYTES))
        found.append(Process("owner of the Step-Trace Buffer", 1, parts))
    return [one for one in found if one.count > 0]


def _learner(settings: Settings, shape: Shape) -> tuple[Parts, Parts]:
    """Estimate the memory of any learner, on the host and on a GPU."""
    model, rllib = settings.model, settings.rllib
    shards = max(1, rllib.num_learners) if settings.update.learner_parallelism == "fsdp" else 1
    on_gpu, whole = bool(rllib.num_gpus_per_learner), shape.parameters * ITEMSIZE[model.dtype]
    states = [*state_parts(shape, model, shards), *pass_parts(shape, model, row_of(settings), on_gpu)]
    states.append(Part("gathered weights", whole_bytes(shape, model, shards), "update"))
    if settings.objective.kl_coeff > 0 and model.lora is None:  # with LoRA it is the model without adapters
        states.append(Part("reference model", whole // shards))
    held = "float32" if shards > 1 and model.lora is None and model.master_weights is not None else model.dtype
    copies = (held != settings.engine.dtype) + (model.lora is not None)  # one to score as the engine does, one for adapters
    states.append(Part("weights as the engine has them", copies * states[0].num_bytes, "sync"))
    if not on_gpu:
        return tuple(states), ()
    host = (Part("CUDA on the host", CUDA_HOST), Part("model, before it moves to the GPU", whole, "loading"))
    return host, (Part("CUDA", CUDA_DEVICE), *states)


def _first_learner(settings: Settings, shape: Shape) -> Parts:
    """Estimate what only the first learner holds on the host: weights for RLlib, and for other processes of this machine."""
    model, rllib, sent = settings.model, settings.rllib, ITEMSIZE[settings.engine.dtype]
    copies = 2 if rllib.num_learners else 1  # one in Ray's object store
    parts = [Part("weights packed for a checkpoint", copies * packed_bytes(shape, model, ITEMSIZE[model.dtype]), "checkpoint")]
    if not rllib.num_learners and not rllib.num_env_runners:
        parts.append(Part("weights that RLlib packed at its start", packed_bytes(shape, model, sent)))
    if (rllib.num_env_runners or rllib.evaluation_num_env_runners) and (size := _sent_bytes(settings, shape)):
        parts += [Part("weights in Ray's object store", size), Part("weights packed for the engines", size, "sync")]
    return tuple(parts)


def _sent_bytes(settings: Settings, shape: Shape) -> int:
    """Compute the bytes that go through Ray's object store to an engine."""
    if settings.update.weight_transfer in ("nccl", "ipc"):
        return 0
    lora = settings.model.lora
    return shape.adapters(lora) * 4 if lora else shape.parameters * ITEMSIZE[settings.engine.dtype]


def _engine(settings: Settings, shape: Shape, device: int | None) -> tuple[Parts, Parts]:
    """Estimate the memory of an engine, on the host and on a GPU. There, keys and values take the rest of its share.

    vLLM does not start without room for one longest trajectory: the GPU must be so large that the engine's share has it.
    """
    (weights, step, token), share = engine_bytes(shape, settings), settings.engine.gpu_memory_utilization
    alone = bool(settings.rllib.num_env_runners or settings.rllib.evaluation_num_env_runners)
    copies = alone + (settings.engine.tensor_parallel_size > 1)  # one more for workers in processes of their own
    sent = Part("engine: weights that it is sent", copies * _sent_bytes(settings, shape), "sync")
    code, parts = (Part("vLLM", VLLM), sent, *_embedder(settings)), [Part("engine: weights", weights)]
    cache = "engine: keys and values"
    if not settings.rllib.num_gpus_per_env_runner:
        parts.append(Part(f"{cache} (engine.kv_cache_gib)", int(settings.engine.kv_cache_gib * GIB)))
        return (*code, *parts, Part("engine: one step", step, "rollout")), ()
    longest, room = token * row_of(settings).longest, int(share * (device or 0)) - weights - step
    name = f"{cache}, room for {max(1, room // longest):,} of the longest trajectories"
    parts += [Part("engine: one step", step), Part(name, max(longest, room))]
    if device and room < longest:
        parts.append(
            Part("not the engine's (engine.gpu_memory_utilization)", int((weights + step + longest) * (1 / share - 1)))
        )
    if settings.engine.sleep:  # it frees all of it for an update, and takes it again before the sync
        parts = [replace(part, phase=phase) for phase in ("rollout", "sync") for part in parts]
    return (*code, Part("CUDA on the host", CUDA_HOST)), tuple(parts)


def _embedder(settings: Settings) -> Parts:
    local = settings.uses_retrieval and "://" not in settings.buffer.embedder
    return (Part("embedder", EMBEDDER),) if local else ()


@dataclass(frozen=True)
class Machine:
    """Memory and GPUs of a machine; None: not known from here."""

    host_bytes: int | None
    gpu_bytes: int | None  # of the smallest GPU
    gpus: int | None


def verdict(where: str, needed: float, there: float | None, unit: str = "GiB") -> dict[str, Any]:
    """Compare a need of the job with what is there, in bytes or GPUs; ``fits`` is None if that is not known.

    Returns:
        The arguments, ``fits``, and ``text`` for people.
    """
    scale = GIB if unit == "GiB" else 1
    fits, said = None if there is None else needed <= there, f"{where}: needs {needed / scale:.3g} {unit}"
    if there is None:
        text = f"{said}; what there is, is not known from here"
    else:
        close = unit == "GiB" and needed <= there < needed * (1 + ERROR)
        told = "fits, but closer than this estimate's error" if close else "fits" if fits else "does not fit"
        text = f"{told}: {said}, {there / scale:.3g} {unit} there" + (ADVICE if not fits and "GPU of" in where else "")
    return {"where": where, "needed": needed, "there": there, "unit": unit, "fits": fits, "text": text}


def this_machine() -> Machine:
    """Read this machine's memory and GPUs."""
    import psutil
    import torch

    limits = [text for file in _LIMITS if file.is_file() and (text := file.read_text(encoding="utf-8").strip()).isdigit()]
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in gpus]
    return Machine(min([psutil.virtual_memory().total, *map(int, limits)]), min(sizes, default=None), len(sizes))


def fits(found: list[Process], machine: Machine) -> list[dict[str, Any]]:
    """Judge whether the processes of a trial fit a machine: its memory, the number of its GPUs, and the memory of a GPU.

    All peaks on the host are added up, though they seldom come together. Processes with a fraction of a GPU share one, as many
    as it has room for.
    """
    verdicts = [verdict("memory of all processes", sum(one.count * peak(one.host) for one in found), machine.host_bytes)]
    if wanted := sum(one.count * one.gpus for one in found):
        verdicts.append(verdict("GPUs", wanted, machine.gpus, "GPUs"))
    verdicts += [verdict(f"memory of a GPU of: {one.name}", peak(one.gpu), machine.gpu_bytes) for one in found if one.gpus >= 1]
    if sharing := [one for one in found if 0 < one.gpus < 1]:
        together: Parts = ()
        room = 1.0
        for one in sharing:
            beside = min(one.count, int(room / one.gpus + 1e-9))
            together, room = together + beside * one.gpu, room - beside * one.gpus
        names = " and ".join(one.name for one in sharing)
        verdicts.append(verdict(f"memory of a GPU of: {names}", peak(together), machine.gpu_bytes))
    return verdicts

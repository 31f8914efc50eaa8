"""The learners' part of a checkpoint, by torch distributed checkpoint: each learner writes its share; any number can read it.

    weights.<name>               trained weights, named as in the language model; their float32 masters if there are any
    optimizer.<name>.<entry>     moments and step count of that weight
    rng.<rank>.<device>          state of torch's random generators
    progress.<name>              version of the weights, optimiser steps skipped in a row
    model.json                   the model that this state belongs to: identity.py

Replicated tensors are written once; of sharded tensors (DTensors), each learner writes its shards. The learning rate is not
stored: it follows from the config and from the number of env steps that were sampled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rapo_rllib.errors import CheckpointError
from rapo_rllib.learner.identity import check_identity, write_identity
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.learner.rl_module import CausalLMRLModule

NamedParameters = list[tuple[str, torch.nn.Parameter]]


def save_training_state(
    folder: str, policy: CausalLMRLModule, optimizer: torch.optim.Optimizer, progress: dict[str, int]
) -> None:
    """Write the training state into ``folder``. All learners call this at once.

    Raises:
        CheckpointError: on all learners together, if one of them could not write.
    """
    parameters = _trained(policy)
    state: dict[str, Any] = {
        "weights": _exact(parameters, optimizer),
        "optimizer": _entries(parameters, optimizer),
        "rng": {str(_rank()): _generators()},
        "progress": progress,
    }
    # no fsync: a file that a dying machine did not finish does not match its checksum in the checkpoint's list of files
    with _alone_or_together() as no_dist:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=False), no_dist=no_dist)
    if not _rank():
        write_identity(folder, policy.settings, policy.language_model.config)


def load_training_state(
    folder: str, policy: CausalLMRLModule, optimizer: torch.optim.Optimizer, ranks: Ranks, *, needs_base: bool
) -> dict[str, int]:
    """Load a saved training state into policy and optimiser; returns the progress. All learners call this at once.

    A learner's random generators are restored if the checkpoint has some of its rank; otherwise they stay as they are.

    Raises:
        CheckpointError: the checkpoint belongs to another model (see :func:`check_identity`, also for ``needs_base``), its
            weights have other names or shapes, or a learner could not read it.
        LearnerError: on all of several learners, if one of them finds that the checkpoint does not fit.
    """
    parameters = _trained(policy)
    with ranks.raise_on_all_ranks("a look at the checkpoint"):
        check_identity(folder, policy.settings, policy.language_model.config, needs_base=needs_base)
        stored = dcp.FileSystemReader(folder).read_metadata()
        _check_names(folder, stored, parameters)
    generators = _under(stored, f"rng.{_rank()}.")
    state: dict[str, Any] = {
        "weights": _exact(parameters, optimizer),
        "optimizer": _empty_entries(stored, parameters),
        "rng": {str(_rank()): {device: own for device, own in _generators().items() if device in generators}},
        "progress": dict.fromkeys(_under(stored, "progress."), 0),
    }
    with _alone_or_together() as no_dist:
        dcp.load(state, checkpoint_id=folder, no_dist=no_dist)
    with torch.no_grad():
        for name, parameter in parameters:
            parameter.copy_(state["weights"][name])  # stored masters are rounded; without masters, a plain copy
    indexed = {index: state["optimizer"][name] for index, (name, _) in enumerate(parameters) if state["optimizer"].get(name)}
    optimizer.load_state_dict({"state": indexed, "param_groups": optimizer.state_dict()["param_groups"]})
    setters = {"cpu": torch.set_rng_state, "cuda": torch.cuda.set_rng_state}
    for device, generator in state["rng"][str(_rank())].items():
        setters[device](generator)
    return state["progress"]


def _trained(policy: CausalLMRLModule) -> NamedParameters:
    """List the trained parameters with their names, in the order of the optimiser."""
    return [(name, parameter) for name, parameter in policy.language_model.named_parameters() if parameter.requires_grad]


@contextmanager
def _alone_or_together() -> Iterator[bool]:
    """Yield whether this learner is alone, without torch's warning. Convert torch's errors, which are no ``Exception``."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            yield not dist.is_initialized()
    except CheckpointException as error:
        failures = (f"learner {rank}: {type(cause).__name__}: {cause}" for rank, (cause, _) in error.failures.items())
        raise CheckpointError("; ".join(failures)) from error


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _entries(parameters: NamedParameters, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    held = zip(parameters, _stepped_on(optimizer), strict=True)
    return {name: dict(optimizer.state[tensor]) for (name, _), tensor in held if tensor in optimizer.state}


def _exact(parameters: NamedParameters, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the weights that the optimiser steps on: so masters and float32 shards are stored in the same way."""
    return {name: tensor.detach() for (name, _), tensor in zip(parameters, _stepped_on(optimizer), strict=True)}


def _stepped_on(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """List the optimiser's parameters, in the order of the policy's: the same ones, or their float32 masters."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _under(stored: Metadata, prefix: str) -> dict[str, Any]:
    """Select the stored metadata whose names begin with this prefix; the result's keys lack it."""
    return {key.removeprefix(prefix): of for key, of in stored.state_dict_metadata.items() if key.startswith(prefix)}


def _empty_entries(stored: Metadata, parameters: NamedParameters) -> dict[str, dict[str, torch.Tensor]]:
    """Make tensors to read the optimiser's entries into, sharded as the parameters are here."""
    by_name: dict[str, dict[str, torch.Tensor]] = {name: {} for name, _ in parameters}
    shapes = dict(parameters)
    for key, found in _under(stored, "optimizer.").items():
        name, _, entry = key.rpartition(".")
        assert isinstance(found, TensorStorageMetadata), key
        like, dtype = shapes[name], found.properties.dtype
        alike = found.size == like.shape
        by_name[name][entry] = torch.zeros_like(like, dtype=dtype) if alike else torch.zeros(found.size, dtype=dtype)
    return by_name


def _check_names(folder: str, stored: Metadata, parameters: NamedParameters) -> None:
    weights = _under(stored, "weights.")
    there = {name: tuple(found.size) for name, found in weights.items() if isinstance(found, TensorStorageMetadata)}
    here = {name: tuple(parameter.shape) for name, parameter in parameters}
    if there != here:
        wrong = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        raise CheckpointError(
            f"{folder} holds the weights of another model: {wrong[0]} is {there.get(wrong[0], 'missing')} there and "
            f"{here.get(wrong[0], 'missing')} here ({len(wrong)} differ). Restore with the `model` it was made with."
        )


def _generators() -> dict[str, torch.Tensor]:
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found

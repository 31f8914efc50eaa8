"""Checkpoints of a ``RAPO``, written and read, and export of its policy alone.

    checkpoint/
        manifest.json          every file with size and sum; without it, or against it, nothing is read
        training_state/        weights and optimiser of all learners (torch distributed checkpoint)
        algorithm_state.pkl    RLlib's metrics and iteration, cursor of the questions, replay store, the policy's own
                               step traces and the use of all, summary
        policy/                the policy as a Hugging Face folder
        result.json            the last result; Tune's own file may lack it after a kill
        rllib_checkpoint.json, class_and_ctor_args.pkl: what ``Algorithm.from_checkpoint`` reads

RLlib's own way asks one learner for everything, and returns without a word if that one could not write.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import ray
from pyarrow.fs import FileSystem, LocalFileSystem, copy_files
from ray.air._internal.json import SafeFallbackEncoder
from ray.tune.utils.file_transfer import sync_dir_between_nodes

from rapo_rllib.checkpoints.folder import RESULT, atomic_directory, check_whole, finish_replacement
from rapo_rllib.errors import CheckpointError
from rapo_rllib.settings import ModelSettings

TRAINING_STATE = "training_state"
POLICY = "policy"


class AlgorithmCheckpoints:
    """Writes and reads all of a run: what the algorithm itself keeps, and what its learners keep together.

    Args:
        learner_group: of the algorithm, a ``RAPOLearnerGroup``.
        weights_lock: held while weights are read or changed.
        with_policy: write the policy as a Hugging Face folder, too.
    """

    def __init__(self, learner_group: Any, weights_lock: AbstractContextManager[Any], with_policy: bool) -> None:
        self._learner_group, self._weights_lock, self._with_policy = learner_group, weights_lock, with_policy

    def save(
        self, path: Any, filesystem: FileSystem | None, write_own: Callable[[Path], Any], iteration: int, result: Mapping | None
    ) -> str:
        """Write a checkpoint: whole, or not at all; returns its path.

        Args:
            path: of its folder, or the address of one on a remote storage; None: a temporary one.
            filesystem: that ``path`` is on; None: what its address says.
            write_own: writes into a folder what the algorithm keeps.
            iteration: after which it is written.
            result: of that iteration.

        Raises:
            CheckpointError: a learner could not write, or the disk is full; what was at ``path`` is still there.
            OSError: as above, but of this process.
        """
        filesystem, target = located(tempfile.mkdtemp(prefix="rapo_checkpoint_") if path is None else path, filesystem)

        def write(path: Path) -> None:
            with self._weights_lock, atomic_directory(path, iteration=iteration) as folder:
                write_own(folder)
                (folder / RESULT).write_text(json.dumps(result or {}, cls=SafeFallbackEncoder))
                self.on_all_learners(folder / TRAINING_STATE, save_training_state, writes=True)
                if self._with_policy:
                    self.on_all_learners(folder / POLICY, _export, writes=True)

        if isinstance(filesystem, LocalFileSystem):
            write(Path(target))
        else:
            with tempfile.TemporaryDirectory() as temporary:
                write(Path(temporary) / "checkpoint")
                copy_files(f"{temporary}/checkpoint", target, destination_filesystem=filesystem)
        return target

    def restore(self, path: Any, filesystem: FileSystem | None, read_own: Callable[[Path], int]) -> None:
        """Read a checkpoint, on any number of learners.

        Args:
            path: of its folder, or the address of one on a remote storage.
            filesystem: that ``path`` is on; None: what its address says.
            read_own: reads from a folder what the algorithm keeps; returns the env steps sampled so far.

        Raises:
            CheckpointError: it is not complete, is damaged, or holds another model.
            FileNotFoundError: there is nothing at ``path``.
        """
        filesystem, source = located(path, filesystem)
        with _local_copy(source, filesystem) as folder:
            check_whole(folder)
            env_steps = read_own(folder)
            with self._weights_lock:
                self.on_all_learners(
                    folder / TRAINING_STATE, lambda learner, state: learner.load_training_state(state, env_steps), writes=False
                )

    def on_all_learners(self, folder: Path, use: Callable[[Any, str], None], *, writes: bool) -> None:
        """Call ``use(learner, folder)`` on all learners together; files travel where a learner is on another machine.

        Raises:
            CheckpointError: a learner could not; all are alive still.
            LearnerError: a learner died.
        """
        home, path = _address(), str(folder)
        folder.mkdir(exist_ok=True)

        def locally(learner: Any) -> None:
            here = _address()
            if here == home:
                use(learner, path)
                return
            with tempfile.TemporaryDirectory() as copied:
                if not writes:
                    sync_dir_between_nodes(home, path, here, copied, max_size_bytes=None)
                use(learner, copied)
                if writes:
                    sync_dir_between_nodes(here, copied, home, path, max_size_bytes=None)

        self._learner_group.on_all(locally, f"{'writing' if writes else 'reading'} a checkpoint", CheckpointError)


def save_training_state(learner: Any, folder: str) -> None:
    """Let a learner write its part of the training state."""
    learner.save_training_state(folder)


def _export(learner: Any, folder: str) -> None:
    learner.weights.export(folder)


def _address() -> str:
    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "local"


def located(path: Any, filesystem: FileSystem | None) -> tuple[FileSystem, str]:
    """Return the file system and the path on it of a folder, or of an address on a remote storage."""
    if filesystem is not None:
        return filesystem, str(path)
    text = str(path)
    return FileSystem.from_uri(text if "://" in text else str(Path(text).expanduser().absolute()))


@contextmanager
def _local_copy(source: str, filesystem: FileSystem) -> Iterator[Path]:
    """Copy the checkpoint to this machine's disk."""
    if isinstance(filesystem, LocalFileSystem):
        finish_replacement(Path(source))
        if not Path(source).is_dir():
            raise FileNotFoundError(f"there is no checkpoint at {source}")
        yield Path(source)
        return
    folder = tempfile.mkdtemp()
    try:
        copy_files(source, folder, source_filesystem=filesystem)
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def export_policy(model: ModelSettings, learner_group: Any, folder: str | Path, merged: bool) -> Path:
    """Let the learners write the policy; returns the folder.

    Args:
        model: that is trained.
        learner_group: a ``RAPOLearnerGroup``.
        folder: made if it is not there; with remote learners on storage that they share.
        merged: False: the adapters alone.

    Raises:
        ValueError: adapters were asked for, and there are none.
        LearnerError: a learner could not write it, or died.
        RuntimeError: it was written elsewhere.
    """
    if not merged and model.lora is None:
        raise ValueError("export_policy(merged=False): adapters are trained with model.lora only; leave merged out")
    target = Path(folder).absolute()
    target.mkdir(parents=True, exist_ok=True)
    learner_group.on_all(lambda learner: learner.weights.export(str(target), merged), "an export of the policy")
    if not (target / ("config.json" if merged else "adapter_config.json")).exists():
        raise RuntimeError(f"the policy was not written to {target}: do learners and driver share this folder?")
    return target

"""Write and read checkpoints of a ``RAPO`` algorithm; export its policy alone.

    checkpoint/
        manifest.json          every file with size and checksum; if it is missing or disagrees, nothing is read
        training_state/        weights and optimiser of all learners (torch distributed checkpoint)
        algorithm_state.pkl    RLlib's metrics and iteration, cursor of the questions, replay store, the policy's own
                               step traces, use of all step traces, summary
        policy/                the policy as a Hugging Face folder
        result.json            the last result; Tune's own file may lack it after a kill
        rllib_checkpoint.json, class_and_ctor_args.pkl: what ``Algorithm.from_checkpoint`` reads

RLlib's own way asks one learner for everything, and reports no error if that learner could not write.
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
    """Writer and reader of a run's state: the algorithm's own part, and the part that its learners hold together.

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
        """Write a checkpoint, whole or not at all, and return its path.

        Args:
            path: of the checkpoint's folder, or its address on a remote storage; None: a temporary folder.
            filesystem: file system of ``path``; None: found from its address.
            write_own: writes the algorithm's own part into a folder.
            iteration: after which the checkpoint is written.
            result: of that iteration.

        Raises:
            CheckpointError: a learner could not write, or the disk is full; what was at ``path`` is still there.
            OSError: this process could not write, for another reason.
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
        """Restore a checkpoint on any number of learners.

        Args:
            path: of the checkpoint's folder, or its address on a remote storage.
            filesystem: file system of ``path``; None: found from its address.
            read_own: reads the algorithm's own part from a folder; returns the env steps sampled so far.

        Raises:
            CheckpointError: the checkpoint is not complete, is damaged, or holds another model.
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
        """Call ``use(learner, folder)`` on all learners together; a learner on another machine gets or sends copies of files.

        Raises:
            CheckpointError: ``use`` failed on a learner; all learners are still alive.
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
    """Find the file system of a folder or of an address on a remote storage, and the path on it."""
    if filesystem is not None:
        return filesystem, str(path)
    text = str(path)
    return FileSystem.from_uri(text if "://" in text else str(Path(text).expanduser().absolute()))


@contextmanager
def _local_copy(source: str, filesystem: FileSystem) -> Iterator[Path]:
    """Open a local folder with the checkpoint: ``source`` itself, or a temporary copy if it is on a remote storage."""
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
    """Let the learners write the policy, and return the folder.

    Args:
        model: settings of the trained model.
        learner_group: a ``RAPOLearnerGroup``.
        folder: made if it is missing; must be on storage that remote learners share.
        merged: whether the whole model is written; False: the adapters alone.

    Raises:
        ValueError: adapters were asked for, and there are none.
        LearnerError: a learner could not write the policy, or died.
        RuntimeError: the policy was written elsewhere: learners and driver do not share ``folder``.
    """
    if not merged and model.lora is None:
        raise ValueError("export_policy(merged=False): adapters are trained with model.lora only; leave merged out")
    target = Path(folder).absolute()
    target.mkdir(parents=True, exist_ok=True)
    learner_group.on_all(lambda learner: learner.weights.export(str(target), merged), "an export of the policy")
    if not (target / ("config.json" if merged else "adapter_config.json")).exists():
        raise RuntimeError(f"the policy was not written to {target}: do learners and driver share this folder?")
    return target

"""The part of ``RAPO`` that writes and reads checkpoints.

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
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from pyarrow.fs import FileSystem, LocalFileSystem, copy_files
from ray.air._internal.json import SafeFallbackEncoder
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.tune.utils.file_transfer import sync_dir_between_nodes

from rapo_rllib.checkpoints.export import export_policy
from rapo_rllib.checkpoints.folder import RESULT, atomic_directory, check_whole, finish_replacement
from rapo_rllib.errors import CheckpointError

TRAINING_STATE = "training_state"
POLICY = "policy"


class SavesCheckpoints:
    """Mixed into ``RAPO``, before RLlib's ``Algorithm``."""

    # of the algorithm
    config: Any
    learner_group: Any
    metrics: Any
    iteration: Any
    run_summary: Any
    _last_result: Any
    _weights_lock: Any
    _cursor: Any
    _ahead: Any
    _off_policy_mixer: Any
    _buffer_updater: Any
    _idle_buffer: Any  # of a checkpoint, where this run never retrieves: a later one may, and goes on with these traces
    _retrieval_prob: Any
    progress: Any

    def save_to_path(
        self, path: Any = None, *, state: Any = None, filesystem: FileSystem | None = None, use_msgpack: bool = False
    ) -> str:
        """Write a checkpoint: whole, or not at all.

        Args:
            path: of the checkpoint's folder, or the address of one on a remote storage; None: a temporary one.
            state: not taken; a checkpoint is always of the present state.
            filesystem: that ``path`` is on; None: what its address says.
            use_msgpack: of ``algorithm_state``, in place of pickle.

        Returns:
            The path.

        Raises:
            ValueError: ``state`` was given.
            CheckpointError: a learner could not write; what was at ``path`` is still there.
            OSError: this process could not; likewise.
        """
        if state is not None:
            raise ValueError("RAPO.save_to_path: state cannot be given; the checkpoint is of the present state")
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="rapo_checkpoint_"))
        self.progress.phase("saving")
        filesystem, target = _located(path, filesystem)
        if isinstance(filesystem, LocalFileSystem):
            self._write(Path(target), use_msgpack)
        else:
            with tempfile.TemporaryDirectory() as folder:
                self._write(Path(folder) / "checkpoint", use_msgpack)
                copy_files(f"{folder}/checkpoint", target, destination_filesystem=filesystem)
        return str(target)

    def _write(self, path: Path, use_msgpack: bool) -> None:
        components = [name for name, _ in self.get_checkpointable_components()]  # type: ignore[attr-defined]
        with self._weights_lock, atomic_directory(path, iteration=self.iteration) as folder:
            own = self.get_state(not_components=components)
            super().save_to_path(folder, state=own, use_msgpack=use_msgpack)  # type: ignore[misc]
            (folder / RESULT).write_text(json.dumps(self._last_result or {}, cls=SafeFallbackEncoder))
            self._on_all_learners(folder / TRAINING_STATE, _save, writes=True)
            if self.config.export_with_checkpoints:
                self._on_all_learners(folder / POLICY, _export, writes=True)

    def restore_from_path(self, path: Any, *args: Any, filesystem: FileSystem | None = None, **kwargs: Any) -> None:
        """Go on from a checkpoint, on any number of learners and env runners; every engine then confirms its weights.

        Args:
            path: of the checkpoint's folder, or the address of one on a remote storage.
            *args: RLlib's.
            filesystem: that ``path`` is on; None: what its address says.
            **kwargs: RLlib's; with ``component``, ``path`` is of that component alone, as RLlib writes it.

        Raises:
            CheckpointError: it is not complete, is damaged, or holds another model.
            FileNotFoundError: there is nothing at ``path``.
        """
        filesystem, source = _located(path, filesystem)
        if kwargs.get("component") is not None:
            super().restore_from_path(source, *args, filesystem=filesystem, **kwargs)  # type: ignore[misc]
        else:
            with _local_copy(source, filesystem) as folder:
                check_whole(folder)
                super().restore_from_path(folder, *args, **kwargs)  # type: ignore[misc]
                num_env_steps = self._num_env_steps()
                with self._weights_lock:
                    self._on_all_learners(
                        folder / TRAINING_STATE,
                        lambda learner, state: learner.load_training_state(state, num_env_steps),
                        writes=False,
                    )
        self.sync_engines()  # type: ignore[attr-defined]

    def _on_all_learners(self, folder: Path, use: Any, *, writes: bool) -> None:
        """``use(learner, folder)`` on all learners together; files travel where a learner is on another machine.

        Raises:
            CheckpointError: a learner could not; all are alive still (RLlib would give up one that raised).
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

        def answer(learner: Any) -> str | None:
            try:
                locally(learner)
            except Exception as error:
                return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
            return None

        answers = [result.get() for result in self.learner_group.foreach_learner(answer).result_or_errors]
        if failed := [text for text in answers if text]:
            raise CheckpointError(failed[0])

    def export_policy(self, folder: str | Path, merged: bool = True) -> Path:
        """Write the policy as a Hugging Face folder that ``transformers`` and vLLM load; returns the folder.

        With remote learners the folder must be on storage that they share. With LoRA ``merged=False`` writes the adapters
        alone, for ``PeftModel.from_pretrained``.

        Raises:
            ValueError: there are no adapters.
            RuntimeError: no learner could write it.
        """
        return export_policy(self.config.settings.model, self.learner_group, folder, merged)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """RLlib's, and where the data set, the schedules, the summary and the replay store stand."""
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)  # type: ignore[misc]
        state["rapo"] = {"cursor": self._cursor_state(), "summary": self.run_summary.get_state()}
        if self._off_policy_mixer is not None:
            state["rapo"]["off_policy"] = self._off_policy_mixer.source.get_state()
        if self._buffer_updater is not None:
            state["rapo"]["buffer"] = self._buffer_updater.get_state()
        elif self._idle_buffer is not None:
            state["rapo"]["buffer"] = self._idle_buffer
        return state

    def _cursor_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._cursor.get_state() if self._ahead is None else self._ahead.cursor_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the batch that would have come."""
        if self._ahead is not None:
            self._ahead.forget()
        super().set_state(state)  # type: ignore[misc]
        if "rapo" in state:
            self._cursor.set_state(state["rapo"]["cursor"])
            self.run_summary.set_state(state["rapo"]["summary"])
            if self._off_policy_mixer is not None:
                self._off_policy_mixer.source.set_state(state["rapo"].get("off_policy"))
            self._idle_buffer = state["rapo"].get("buffer") if self._buffer_updater is None else None
            if self._buffer_updater is not None:
                self._buffer_updater.set_state(state["rapo"].get("buffer"))
        self._retrieval_prob.update(timestep=self._num_env_steps())

    def _num_env_steps(self) -> int:
        return int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))


def _save(learner: Any, folder: str) -> None:
    learner.save_training_state(folder)


def _export(learner: Any, folder: str) -> None:
    learner.weights.export(folder)


def _address() -> str:
    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "local"


def _located(path: Any, filesystem: FileSystem | None) -> tuple[FileSystem, str]:
    """The file system, and the path on it."""
    if filesystem is not None:
        return filesystem, str(path)
    text = str(path)
    return FileSystem.from_uri(text if "://" in text else str(Path(text).expanduser().absolute()))


@contextmanager
def _local_copy(source: str, filesystem: FileSystem) -> Iterator[Path]:
    """The checkpoint on this machine's disk."""
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

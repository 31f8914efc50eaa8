"""Which transcripts a logger takes, from this machine and from another storage."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from rapo_rllib.loggers.trial_transcripts import NewTranscripts, local_folder, still_there
from rapo_rllib.loggers.wandb_logger import _LogsTranscripts


@pytest.mark.parametrize("remote", [False, True])
def test_each_file_is_taken_once_and_lies_on_this_machine(tmp_path: Path, remote: bool) -> None:
    filesystem: FileSystem = LocalFileSystem()
    storage = SimpleNamespace(storage_filesystem=filesystem, trial_fs_path=str(tmp_path / "bucket" / "trial"))
    if remote:
        storage.storage_filesystem = SubTreeFileSystem(str(tmp_path / "bucket"), filesystem)
        storage.trial_fs_path = "trial"
    (tmp_path / "staging").mkdir()
    trial = SimpleNamespace(trial_id="t", storage=storage, local_path=str(tmp_path / "staging"))
    new = NewTranscripts()
    assert new.take(trial) == []  # there is no such folder yet
    written = tmp_path / "bucket" / "trial" / "transcripts"
    written.mkdir(parents=True)
    for names in (["iteration_00001.jsonl"], ["iteration_00002.jsonl", "iteration_00003.jsonl"]):
        for name in names:
            (written / name).write_text(name)
        (written / "iteration_00009.jsonl.partial").write_text("half")
        assert new.take(trial) == names
        folder = local_folder(trial, names)
        assert [(folder / name).read_text() for name in names] == names
        assert (folder == written) is not remote
    assert new.take(trial) == []
    (written / "iteration_00002.jsonl").unlink()  # as one of an old iteration, after it was taken
    gone_and_there = ["iteration_00002.jsonl", "iteration_00003.jsonl"]
    there = list(still_there(local_folder(trial, gone_and_there), gone_and_there))
    assert there == (gone_and_there if remote else gone_and_there[1:])  # the copy stays
    if remote:
        assert {path.name for path in folder.iterdir()} == {f"iteration_0000{number}.jsonl" for number in (1, 2, 3)}


@pytest.mark.parametrize(("keep", "policy"), [(True, "immutable"), (2, "mutable")])
def test_wandb_copies_what_may_be_deleted_before_it_is_sent(tmp_path: Path, keep: int, policy: str) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    (folder / "iteration_00001.jsonl").write_text("{}")
    added: list[tuple[str, str]] = []
    artifact = SimpleNamespace(add_file=lambda path, policy: added.append((path, policy)))
    logging_process: Any = _LogsTranscripts.__new__(_LogsTranscripts)
    logging_process.kwargs, logging_process._trial_name = {"config": {"transcripts": keep}}, "trial"
    logging_process._wandb = SimpleNamespace(Artifact=lambda **about: artifact, log_artifact=added.append)
    logging_process._handle_checkpoint(str(folder))
    assert added == [(str(folder / "iteration_00001.jsonl"), policy), artifact]

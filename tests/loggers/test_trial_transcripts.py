"""Which transcripts a logger takes, from this machine and from another storage."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from rapo_rllib.loggers.trial_transcripts import NewTranscripts, local_folder


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
    if remote:
        assert {path.name for path in folder.iterdir()} == {f"iteration_0000{number}.jsonl" for number in (1, 2, 3)}

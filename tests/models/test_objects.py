"""Loaded models and data sets that are given in place of names."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rapo_rllib.models.objects import model_path, with_data_files

ROWS = pd.DataFrame({"question": ["1 + 1?"], "answer": ["2"]})


class Saved:
    """A model or a tokenizer with a template in a folder of its own."""

    name_or_path = "none"

    def save_pretrained(self, folder: Path) -> None:
        (folder / "templates").mkdir(exist_ok=True)
        (folder / "templates" / "tools.jinja").write_text("x")


def test_a_folder_may_hold_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path))
    folder = model_path((Saved(), Saved()))
    assert (Path(folder) / "templates" / "tools.jinja").is_file() and model_path((Saved(), Saved())) == folder


def test_a_data_set_of_several_splits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"env_config\.dataset: has the splits train, test: give one"):
        with_data_files({"dataset": {"train": ROWS, "test": ROWS}})

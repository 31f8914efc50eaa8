"""Other libraries' needless lines stay off the terminal; their errors, and what a user asked for, do not."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

import pytest

from rapo_rllib.cli.jobs import prepare
from rapo_rllib.monitoring.quiet import quiet


def test_needless_lines_go_and_all_others_stay(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    quiet()
    quiet()
    for text in ("\033[33mWARN: Overriding environment rllib-single-agent-env-v0 already in registry.", "another"):
        warnings.warn(text, UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in recwarn] == ["another"]
    logger = logging.getLogger("ray.tune.tune")
    logger.warning("Trials did not complete: [PPO_1]")
    logger.warning("another warning")
    logger.error("an error")
    assert [record.getMessage() for record in caplog.records] == ["another warning", "an error"]
    assert len(logger.filters) == 1
    assert not logging.getLogger("vllm.triton_utils").isEnabledFor(logging.WARNING)
    assert logging.getLogger("vllm.engine").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize("verbose", [0, 1])
def test_libraries_are_told_unless_the_user_said_otherwise(verbose: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HF_HUB_DISABLE_PROGRESS_BARS": "0"})
    monkeypatch.setattr(sys, "path", [*sys.path])
    prepare(Path("job.yaml"), verbose)
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "0"
    assert os.environ.get("TORCH_CPP_LOG_LEVEL") == (None if verbose else "ERROR")

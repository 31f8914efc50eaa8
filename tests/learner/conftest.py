"""What the tests of learners share."""

from pathlib import Path

import pytest
from tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a Hugging Face folder."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))

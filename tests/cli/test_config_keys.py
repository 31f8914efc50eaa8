"""Page and stub of all config keys are what the code says; the page says something of every key, and leaves none out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from typer.testing import CliRunner

import rapo_rllib
from rapo_rllib import RAPOConfig
from rapo_rllib.cli.main import app
from rapo_rllib.cli.reference import config_sections, markdown, typed

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("file", "made", "command"),
    [
        ("docs/config.md", markdown, "markdown"),
        ("rapo_rllib/algorithm/training_keys.pyi", typed, "typing"),  # which editors and type checkers read
    ],
)
def test_a_committed_file_is_up_to_date(file: str, made: Callable[[], str], command: str) -> None:
    """What a key must be, its default and its meaning are in the page, as they were when somebody last read it."""
    assert (REPOSITORY / file).read_text(encoding="utf-8") == made(), f"run: rllib config {command} > {file}"


def test_every_key_has_a_meaning() -> None:
    assert [key.name for section in config_sections() for key in section.keys if not key.meaning] == []


def test_every_own_attribute_is_there() -> None:
    keys = {key.name for section in config_sections() for key in section.keys}
    own = {key for key in set(vars(RAPOConfig())) - set(vars(AlgorithmConfig())) if not key.startswith("_")}
    titles = {section.title for section in config_sections()}
    nested = {key for key in own if f"`{key}`" in titles}
    assert own - keys == (nested | {"language_model"}) - keys  # which users write as `model`
    assert "`model`" in titles


def test_the_command_tells_its_version() -> None:
    said = CliRunner().invoke(app, ["--version"]).output
    assert said == f"rapo_rllib {rapo_rllib.__version__} with Ray {ray.__version__}\n"


def test_the_command_looks_for_words() -> None:
    result = CliRunner().invoke(app, ["config", "keys", "clip", "eq. 11"])
    assert result.exit_code == 0
    assert [line.split(":")[0] for line in result.output.splitlines() if not line.startswith(" ")] == [
        "shaping_order",
        "clip_low",
        "clip_high",
        "clip_mode",
    ]
    nothing = CliRunner().invoke(app, ["config", "keys", "quicksilver"])
    assert (nothing.exit_code, nothing.output) == (1, "No key has 'quicksilver' in its name or meaning.\n")

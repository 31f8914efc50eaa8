"""The page of all config keys is what the code says, says something of every key, and leaves none out."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from typer.testing import CliRunner

import rapo_rllib
from rapo_rllib import RAPOConfig
from rapo_rllib.cli.main import app
from rapo_rllib.cli.reference import ConfigKey, config_sections, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


@pytest.fixture(scope="module")
def keys() -> dict[str, ConfigKey]:
    return {key.name: key for section in config_sections() for key in section.keys}


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run: rllib config markdown > docs/config.md"


def test_every_key_has_a_meaning() -> None:
    assert [key.name for section in config_sections() for key in section.keys if not key.meaning] == []


def test_every_own_attribute_is_there(keys: dict[str, ConfigKey]) -> None:
    own = {key for key in set(vars(RAPOConfig())) - set(vars(AlgorithmConfig())) if not key.startswith("_")}
    titles = {section.title for section in config_sections()}
    nested = {key for key in own if f"`{key}`" in titles}
    assert own - set(keys) == (nested | {"language_model"}) - set(keys)  # which users write as `model`
    assert "`model`" in titles


@pytest.mark.parametrize(
    ("name", "must_be", "default", "meaning"),
    [
        ("group_size", "a whole number at least 1", "16", "trajectories per question (paper: 16)"),
        ("lr", "at least 0 or a schedule", "1e-06", "learning rate"),
        ("temperature", "between 0.001 and 2.0", "1.0", "sampling temperature"),
        ("model.autocast_dtype", "a text or null", "'auto'", "matrix products"),
        ("model.lora.rank", "a whole number at least 1", "16", "of each adapter"),
        ("step_trace_buffer.filter.question", "one of 'any', 'other', 'same'", "'any'", "every `other` than the one asked"),
        ("branching.branches", "a whole number at least 2", "2", "branches of a fork"),
        ("env_config.reward.format_check", "one of 'final_step', 'whole_text'", "'final_step'", "whole_text"),
    ],
)
def test_a_key(keys: dict[str, ConfigKey], name: str, must_be: str, default: str, meaning: str) -> None:
    key = keys[name]
    assert (key.must_be, key.default) == (must_be, default)
    assert meaning in key.meaning


def test_keys_that_another_key_sets_are_not_offered(keys: dict[str, ConfigKey]) -> None:
    assert not {"step_trace_buffer.level", "step_trace_buffer.growth"} & set(keys)


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

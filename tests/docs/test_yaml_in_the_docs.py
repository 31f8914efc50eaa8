"""Every key in the YAML of README and docs is one that the code reads, also where a block shows the same key several times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from pages import every

from rapo_rllib import RAPOConfig
from rapo_rllib.cli.reference import config_sections
from rapo_rllib.config.checks import known_keys

NESTED = {key.name for section in config_sections() for key in section.keys}
FLAT = known_keys(RAPOConfig())
EXPERIMENT = {"run", "env", "stop", "config", "checkpoint_config", "num_samples", "storage_path", "loggers", "scheduler"}
FREE = ("env_config.tools", "env_config.scorer", "engine.extra")  # their options belong to what they name
JOBS = [(page, block) for page, block in every("yaml") if "cluster_name:" not in block]

Node = yaml.MappingNode


def pairs(node: yaml.Node) -> list[tuple[str, yaml.Node]]:
    """Keys and values as they stand there, repetitions included."""
    return [(key.value, value) for key, value in node.value] if isinstance(node, Node) else []


def configs(block: str) -> list[tuple[str, yaml.Node]]:
    """``(where, mapping)`` of each piece of a job's config in ``block``."""
    root = yaml.compose(block, Loader=yaml.SafeLoader)
    found = []
    for key, value in pairs(root):
        inside = dict(pairs(value))
        if "run" in inside:
            assert set(inside) <= EXPERIMENT, set(inside) - EXPERIMENT
            found.append(("", inside["config"]))
        elif key == "config":
            found.append(("", value))
    if not found:
        found = [("env_config.", root)] if "scorer" in dict(pairs(root)) else [("", root)]
    return found


def unknown(where: str, node: yaml.Node) -> Iterator[str]:
    """Keys below ``node`` that nobody reads."""
    for key, value in pairs(node):
        path = where + key
        if key == "grid_search":
            continue
        if path not in NESTED and not (where == "" and key in FLAT):
            yield path
        elif not path.startswith(FREE) and any(name.startswith(path + ".") for name in NESTED):
            yield from unknown(path + ".", value)


@pytest.mark.parametrize(("page", "block"), JOBS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(JOBS)])
def test_every_key_is_read(page: str, block: str) -> None:
    assert [path for where, node in configs(block) for path in unknown(where, node)] == []

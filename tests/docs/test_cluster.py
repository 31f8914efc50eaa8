"""The launcher's file of docs/cluster.md is one that Ray accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from pages import REPOSITORY, blocks

SCHEMA = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def cluster() -> dict[str, Any]:
    (block,) = (b for b in blocks(REPOSITORY / "docs" / "cluster.md", "yaml") if "cluster_name:" in b)
    return yaml.safe_load(block)


def test_the_schema_takes_it(cluster: dict[str, Any]) -> None:
    jsonschema.validate(cluster, SCHEMA)


def test_the_schema_refuses_a_key_that_it_does_not_know(cluster: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError, match="setup_comands"):
        jsonschema.validate(cluster | {"setup_comands": []}, SCHEMA)

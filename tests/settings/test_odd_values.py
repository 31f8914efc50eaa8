"""Every declared key, of every section and environment, is given what cannot be: a ``ValueError`` names it, or it is taken."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, get_args

import pytest

import rapo_rllib
from rapo_rllib import RAPOConfig
from rapo_rllib.settings import (
    FLAT,
    BranchingSettings,
    BufferSettings,
    EngineSettings,
    ModelSettings,
    ProtocolSettings,
    RLlibSettings,
    WarmStartSettings,
)
from rapo_rllib.settings.knobs import Knob, Knobs, build, knobs
from rapo_rllib.tools import ToolLimits

ODD = (None, math.inf, -math.inf, math.nan, -1, 1e300, 10**300, "", [], {})
SECTIONS: dict[str, type] = {
    "model": ModelSettings,
    "engine": EngineSettings,
    "protocol": ProtocolSettings,
    "step_trace_buffer": BufferSettings,
    "warm_start": WarmStartSettings,
    "branching": BranchingSettings,
}
FLAT_KEYS = {name: declared for cls in (*FLAT, RLlibSettings) for name, declared in knobs(cls).items()}
MAY_BE_EMPTY = {"system_prompt", "retrieval_sentence"}


def refused(key: str, **keys: Any) -> bool:
    """Whether a job with these keys is refused, by name."""
    try:
        RAPOConfig().environment("rapo/word_problems").update_from_dict(keys).validate()
    except ValueError as error:
        assert key in str(error), f"{key}: {error}"
        return True
    return False


def check_taken(declared: Knob, value: Any) -> None:
    """What was taken is what the declaration says."""
    kinds = get_args(declared.kind) or (declared.kind,)
    if value is None:
        assert NoneType in kinds or declared.default is None or declared.kind is Any, declared.name
    if isinstance(value, int | float):
        assert abs(value) <= 1e15 and (declared.at_least is None or value >= declared.at_least), declared.name
    if value == "":
        assert declared.default == "" or declared.name in MAY_BE_EMPTY, declared.name
    if value == {}:
        names = {kind for kind in kinds if kind is dict or is_dataclass(kind)}
        assert names or declared.name in ("evaluation_config",), declared.name


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_flat_keys(value: Any) -> None:
    for name, declared in FLAT_KEYS.items():
        if not refused(name, **{name: value}):
            check_taken(declared, value)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_keys_of_sections(value: Any) -> None:
    for section, cls in SECTIONS.items():
        if not refused(section, **{section: value}):
            assert value == {} or (value is None and section in ("warm_start", "branching")), section
        for name, declared in knobs(cls).items():
            if not refused(name, **{section: {name: value}}):
                check_taken(declared, value)


@pytest.mark.parametrize("section", ["model", "engine", "protocol", "step_trace_buffer"])
def test_an_empty_section_is_named(section: str) -> None:
    for config in (RAPOConfig().update_from_dict({section: None}), RAPOConfig().training(**{section: None})):  # type: ignore[misc]
        with pytest.raises(ValueError, match=rf"^{section} = None: must be a mapping of "):
            config.environment("rapo/word_problems").validate()


def declared_elsewhere() -> Iterator[type[Knobs]]:
    """Those of environments, tools and rewards."""
    for found in pkgutil.walk_packages(rapo_rllib.__path__, "rapo_rllib."):
        if found.name.endswith(("options", "questions", "_env", "judge", "terms", ".env", "base", "word_problems")):
            try:
                importlib.import_module(found.name)
            except ImportError:  # a package that is not installed
                continue
    classes, seen = [Knobs], set[type]()
    while classes:
        for cls in classes.pop().__subclasses__():
            if cls not in seen and cls.__module__.startswith("rapo_rllib."):
                seen.add(cls)
                classes.append(cls)
                yield cls


def test_keys_of_environments_tools_and_rewards() -> None:
    found = list(declared_elsewhere())
    assert len(found) > len(FLAT) + len(SECTIONS)
    for cls in found:
        for name in knobs(cls):
            for value in ODD:
                try:
                    build(cls, {name: value})
                except ValueError:
                    continue  # of this key, or of one that must be given


@pytest.mark.parametrize("value", [*ODD, 1e12], ids=repr)
def test_limits_of_tools(value: Any) -> None:
    for key in ("timeout_s", "max_output_chars"):
        with pytest.raises(ValueError, match=rf"limits\.{key} = .*: must be a positive "):
            ToolLimits(**{key: value})


@pytest.mark.parametrize("format", ["tags", "native"])
@pytest.mark.parametrize("tag", ["result", "retrieve", "answer", "think"])
def test_a_tool_called_as_a_tag_of_the_protocol_is_refused(tag: str, format: str) -> None:
    from rapo_rllib.envs.tool_env import ToolEnv

    def tool(text: str) -> str:
        """Says it.

        Args:
            text: What.
        """
        return text

    tool.__name__ = tag
    with pytest.raises(ValueError, match=f"a tool is called by <{tag}>, which is a tag of the protocol: leave"):
        ToolEnv({"tools": [tool], "protocol": {"format": format}})


@pytest.mark.parametrize("port", ["99999", "-1", "x"])
def test_a_port_that_is_none_is_named(port: str) -> None:
    from rapo_rllib.milvus.connection import checked_uri
    from rapo_rllib.services.credentials import check_address

    address = f"http://localhost:{port}"
    with pytest.raises(ValueError, match=r"step_trace_buffer\.uri = 'http://localhost:.*Port"):
        checked_uri(address, "step_trace_buffer.uri")
    with pytest.raises(ValueError, match=r"env_config\.url = .*Port"):
        check_address(f"{address}/v1", "env_config.url", "")
    with pytest.raises(ValueError, match="holds a user name or a password"):
        check_address(f"http://me:secret@localhost:{port}", "env_config.url", "")
